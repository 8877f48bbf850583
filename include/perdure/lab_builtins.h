/* Included in front of every source that is compiled for observation (perdure-cc, perdure-c++ and
 * perdure_observe() see to it); nothing to include by hand. C11 and C++11 on, GCC.
 *
 * A copy that the source asks for must stay a call, which the runtime answers and counts, while a
 * copy that the compiler makes itself, of a struct for instance, is called out and expanded in place.
 * -fno-builtin-memcpy keeps memcpy(...) a call; for __builtin_memcpy(...), which libstdc++ uses, the
 * compiler has no such flag, so here it becomes a call of the same function. Constant expressions
 * still get the built-in one.
 */
#if !defined(PERDURE_LAB_BUILTINS_H) && !defined(__ASSEMBLER__) && defined(__GNUC__) && \
    !defined(__clang__)
#define PERDURE_LAB_BUILTINS_H

#pragma GCC system_header

/* The checking forms of these functions would be expanded in place, too. */
#undef _FORTIFY_SOURCE
/* It is not libtsan that runs: its annotations do not exist. */
#undef __SANITIZE_THREAD__

#ifdef __cplusplus
extern "C" {
#endif
/* Names of their own for the functions of the C library, so that no declaration of theirs is in the
 * way, and nobody's member function of the same name. */
void* perdure_lab_memcpy(void*, const void*, __SIZE_TYPE__) __asm__("memcpy")
    __attribute__((__nothrow__));
void* perdure_lab_memmove(void*, const void*, __SIZE_TYPE__) __asm__("memmove")
    __attribute__((__nothrow__));
void* perdure_lab_mempcpy(void*, const void*, __SIZE_TYPE__) __asm__("mempcpy")
    __attribute__((__nothrow__));
void* perdure_lab_memset(void*, int, __SIZE_TYPE__) __asm__("memset") __attribute__((__nothrow__));
int perdure_lab_memcmp(const void*, const void*, __SIZE_TYPE__) __asm__("memcmp")
    __attribute__((__nothrow__, __pure__));
char* perdure_lab_strcpy(char*, const char*) __asm__("strcpy") __attribute__((__nothrow__));
char* perdure_lab_stpcpy(char*, const char*) __asm__("stpcpy") __attribute__((__nothrow__));
char* perdure_lab_strncpy(char*, const char*, __SIZE_TYPE__) __asm__("strncpy")
    __attribute__((__nothrow__));
char* perdure_lab_strcat(char*, const char*) __asm__("strcat") __attribute__((__nothrow__));
char* perdure_lab_strncat(char*, const char*, __SIZE_TYPE__) __asm__("strncat")
    __attribute__((__nothrow__));
int perdure_lab_strcmp(const char*, const char*) __asm__("strcmp")
    __attribute__((__nothrow__, __pure__));
int perdure_lab_strncmp(const char*, const char*, __SIZE_TYPE__) __asm__("strncmp")
    __attribute__((__nothrow__, __pure__));
#ifdef __cplusplus
}
#endif

#if defined(__cplusplus) && __cplusplus >= 201103L
namespace perdure_lab_builtins {
#define PERDURE_LAB_INLINE [[gnu::always_inline]] inline constexpr
PERDURE_LAB_INLINE void* copy(void* to, const void* from, __SIZE_TYPE__ bytes) noexcept {
  return __builtin_is_constant_evaluated() ? __builtin_memcpy(to, from, bytes)
                                           : perdure_lab_memcpy(to, from, bytes);
}
PERDURE_LAB_INLINE void* move(void* to, const void* from, __SIZE_TYPE__ bytes) noexcept {
  return __builtin_is_constant_evaluated() ? __builtin_memmove(to, from, bytes)
                                           : perdure_lab_memmove(to, from, bytes);
}
PERDURE_LAB_INLINE void* set(void* to, int value, __SIZE_TYPE__ bytes) noexcept {
  return __builtin_is_constant_evaluated() ? __builtin_memset(to, value, bytes)
                                           : perdure_lab_memset(to, value, bytes);
}
PERDURE_LAB_INLINE int compare(const void* a, const void* b, __SIZE_TYPE__ bytes) noexcept {
  return __builtin_is_constant_evaluated() ? __builtin_memcmp(a, b, bytes)
                                           : perdure_lab_memcmp(a, b, bytes);
}
PERDURE_LAB_INLINE int compare_strings(const char* a, const char* b) noexcept {
  return __builtin_is_constant_evaluated() ? __builtin_strcmp(a, b) : perdure_lab_strcmp(a, b);
}
PERDURE_LAB_INLINE int compare_strings(const char* a, const char* b, __SIZE_TYPE__ n) noexcept {
  return __builtin_is_constant_evaluated() ? __builtin_strncmp(a, b, n)
                                           : perdure_lab_strncmp(a, b, n);
}
#undef PERDURE_LAB_INLINE
} /* namespace perdure_lab_builtins */
#define __builtin_memcpy(to, from, bytes) (::perdure_lab_builtins::copy((to), (from), (bytes)))
#define __builtin_memmove(to, from, bytes) (::perdure_lab_builtins::move((to), (from), (bytes)))
#define __builtin_memset(to, value, bytes) (::perdure_lab_builtins::set((to), (value), (bytes)))
#define __builtin_memcmp(a, b, bytes) (::perdure_lab_builtins::compare((a), (b), (bytes)))
#define __builtin_strcmp(a, b) (::perdure_lab_builtins::compare_strings((a), (b)))
#define __builtin_strncmp(a, b, n) (::perdure_lab_builtins::compare_strings((a), (b), (n)))
#else
#define __builtin_memcpy(to, from, bytes) perdure_lab_memcpy((to), (from), (bytes))
#define __builtin_memmove(to, from, bytes) perdure_lab_memmove((to), (from), (bytes))
#define __builtin_memset(to, value, bytes) perdure_lab_memset((to), (value), (bytes))
#define __builtin_memcmp(a, b, bytes) perdure_lab_memcmp((a), (b), (bytes))
#define __builtin_strcmp(a, b) perdure_lab_strcmp((a), (b))
#define __builtin_strncmp(a, b, n) perdure_lab_strncmp((a), (b), (n))
#endif
#define __builtin_mempcpy(to, from, bytes) perdure_lab_mempcpy((to), (from), (bytes))
#define __builtin_bcopy(from, to, bytes) ((void)__builtin_memmove((to), (from), (bytes)))
#define __builtin_bzero(to, bytes) ((void)__builtin_memset((to), 0, (bytes)))
#define __builtin_bcmp(a, b, bytes) __builtin_memcmp((a), (b), (bytes))
#define __builtin_strcpy(to, from) perdure_lab_strcpy((to), (from))
#define __builtin_stpcpy(to, from) perdure_lab_stpcpy((to), (from))
#define __builtin_strncpy(to, from, n) perdure_lab_strncpy((to), (from), (n))
#define __builtin_strcat(to, from) perdure_lab_strcat((to), (from))
#define __builtin_strncat(to, from, n) perdure_lab_strncat((to), (from), (n))

#endif

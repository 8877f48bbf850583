// The one unit that compiles fmt's functions. Everywhere else they are declarations only, which is
// three seconds of compilation a unit less than fmt as headers only. They live in a namespace of
// their own (FMT_BEGIN_NAMESPACE, set in CMakeLists.txt), so that a program that links libperdure.a
// and a libfmt of any version has no symbol twice.
#include <fmt/format-inl.h>

// What formats in the units themselves need of it besides: fmt/format.h declares these `extern`.
FMT_BEGIN_NAMESPACE
namespace detail {
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE

// The program of a user who has only the installed package.
#include <perdure/perdure.h>

#include <iostream>

int main() {
  perdure::Pool pool = perdure::Pool::anonymous();
  auto words = perdure::Plush<std::string, std::string>::create(pool, "words");
  words.upsert("perdure", "to last, to go on existing");
  std::string gloss;
  const bool found = words.lookup("perdure", gloss);
  std::cout << perdure::kVersion << ": " << gloss << '\n';
  return found && gloss == "to last, to go on existing" ? 0 : 1;
}

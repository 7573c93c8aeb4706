# Functions that several scripts share. A script reads this file with `source`.

# Prints the folder in which cargo builds.
target_directory() {
  cargo metadata --no-deps --offline --format-version 1 |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}

# Copies the files that git knows or would add: copy_tree FOLDER
copy_tree() {
  mkdir -p "$1"
  git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do [ -f "$file" ] && printf '%s\0' "$file"; done |
    tar --create --null --files-from - | tar --extract --directory "$1"
}

# Prints a value of the section [workspace.package] in Cargo.toml: package_field NAME
package_field() {
  awk -F ' = ' -v name="$1" '
    /^\[/ { here = ($0 == "[workspace.package]") }
    here && $1 == name { gsub(/"/, "", $2); print $2 }' Cargo.toml
}

# Prints the name of an installed toolchain of this version or channel, or nothing:
# installed_toolchain NAME
installed_toolchain() {
  rustup toolchain list 2>/dev/null | sed -n "s/^\(${1//./\\.}[-.][^ ]*\).*/\1/p" | head -n 1
}

# Runs `cargo test` with a server: run_tests ARGUMENT...
run_tests() {
  ./scripts/ensure-server
  # Most tests wait for a server, a lease or a process, and use a core for a tenth of their time.
  : "${RUST_TEST_THREADS:=$((4 * $(nproc 2>/dev/null || echo 2)))}"
  export RUST_TEST_THREADS
  # Continues after a failure, so that one run shows all failures.
  cargo test --all-features --no-fail-fast "$@"
}

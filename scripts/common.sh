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

# Prints the features that ./scripts/test builds: all but the second cryptography of TLS, which takes as long to build as
# a tenth of everything. ./scripts/topologies tests it.
tested_features() {
  local package
  for package in lock-core examples; do
    sed -n '/^\[features\]/,/^\[[^f]/s/^\([a-z][a-z0-9-]*\) *=.*/'"$package"'\/\1/p' "$package/Cargo.toml"
  done | grep -v '/tls-aws-lc$' | paste -sd , -
}

# Sets `selected` to what `cargo test` has to build for these arguments: select_tests ARGUMENT...
# The tests of the examples build them, and find the packages and features of the same build in LOCK_TEST_SELECTED.
# Where LOCK_TEST_SHARED is set, that is the whole workspace with all features, so that all scripts share one build, which
# they don't if each selects other packages.
select_tests() {
  selected=()
  if [ -n "${LOCK_TEST_SHARED:-}" ]; then
    selected=(--workspace --all-features)
    export LOCK_TEST_SELECTED="${selected[*]}"
    while [ $# -gt 0 ]; do
      case $1 in
        -p) shift ;;
        *) selected+=("$1") ;;
      esac
      shift
    done
    return
  fi
  case " $* " in
    *' -p '*) selected=(--all-features "$@") ;;
    *) selected=(--features "$(tested_features)" "$@") ;;
  esac
}

# Builds the optimized programs of the fault suite and of the races with other clients. Together, because alone each of
# them selects other features, and builds the library and its dependencies once more.
build_optimized() {
  cargo build --release --quiet -p fault-suite -p interop --bins
}

prepare_tests() {
  ./scripts/ensure-server
  # Most tests wait for a server, a lease or a process, and use a core for a tenth of their time.
  : "${RUST_TEST_THREADS:=$((4 * $(nproc 2>/dev/null || echo 2)))}"
  export RUST_TEST_THREADS
}

# Runs the tests that the arguments for `cargo test` select, one program after the other: run_tests ARGUMENT...
run_tests() {
  local selected
  prepare_tests
  select_tests "$@"
  # Continues after a failure, so that one run shows all failures.
  cargo test --no-fail-fast "${selected[@]}"
}

# The programs that test deployments of several servers.
deployments='cluster confirm deployments quorum restricted sentinel tls'

# Runs the programs that one selection of targets names, and prints their closing lines, or everything when a test failed:
# run_part TARGETS ARGUMENT...
run_part() {
  local targets=$1 log status=0 runner
  shift
  case $targets in
    # The models of the protocol and the compiler use each core that they get. Tests that wait for a server or a lease
    # go first.
    --lib*)
      runner='case $0 in */lock_protocol-*) exec nice -n 10 "$0" "$@" ;; *) exec "$0" "$@" ;; esac'
      set -- cargo --config "target.'cfg(unix)'.runner = ['bash', '-c', '''$runner''']" test --no-fail-fast "$@" ;;
    *' ui') set -- nice -n 10 cargo test --no-fail-fast "$@" ;;
    *) set -- cargo test --no-fail-fast "$@" ;;
  esac
  log=$(mktemp)
  # shellcheck disable=SC2086 # Several arguments.
  "$@" $targets >"$log" 2>&1 </dev/null || status=$?
  if [ "$status" = 0 ]; then
    # Without programs that have no tests.
    awk '/^ +Running / { program = $0 } /^test result: / && $4 > 0 { print program "\n" $0 }' "$log"
  else
    cat "$log"
    # For the summary. A target that cargo doesn't know has no closing line of its own.
    echo "test: failed: cargo test $targets"
  fi
  rm -f "$log"
  return "$status"
}

# Runs all tests that the arguments for `cargo test` select, three programs at a time, and then the examples in the
# documentation: run_all_tests ARGUMENT...
# Leaves out the deployments of several servers, which ./scripts/topologies tests.
run_all_tests() {
  local selected log status=0
  prepare_tests
  select_tests "$@"
  log=$(mktemp)
  cargo test --no-run "${selected[@]}" 2>&1 | tee "$log"
  export LOCK_TEST_SELECTED="${selected[*]}"
  export -f run_part
  # The longest ones first.
  { printf '%s\n' '--lib --bins' '--test ui' '--test processes' '--test redis'
    sed -n '/unittests/d;s/^ *Executable .*\/\(.*\)-[0-9a-f]*)$/--test \1/p' "$log"; } |
    awk '!seen[$0]++' | grep -vE -e "^--test (${deployments// /|}|floods)$" |
    xargs -P 3 -I TARGETS bash -c 'run_part "$@"' run_part TARGETS "${selected[@]}" || status=1
  # Alone, because a flood takes the time of a processor, and the tests above measure times.
  if grep -q 'Executable floods\.rs' "$log"; then
    run_part '--test floods' "${selected[@]}" || status=1
  fi
  rm -f "$log"
  cargo test --no-fail-fast --doc "${selected[@]}" || status=1
  return "$status"
}

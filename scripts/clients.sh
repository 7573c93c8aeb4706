# Functions that build programs in other languages with their package managers. A script reads this
# file with `source`, and sets `output` to the folder of what it builds.

# Shows the output of a command only when it fails.
quietly() {
  if ! "$@" >"$output/log" 2>&1; then
    cat "$output/log" >&2
    echo "${0##*/}: the command failed: $*" >&2
    exit 1
  fi
}

# Checks that a language is installed: has LANGUAGE OLDEST 'COMMAND THAT PRINTS ITS VERSION' COMMAND...
has() {
  local language=$1 oldest=$2 version=$3 command found
  shift 3
  for command in "${version%% *}" "$@"; do
    if ! command -v "$command" >/dev/null; then
      left_out "$language" "$command is not installed"
      return 1
    fi
  done
  found=$($version 2>&1 | grep -o '[0-9][0-9.]*' | head -n 1)
  if [ "$(printf '%s\n' "$oldest" "$found" | sort -V | head -n 1)" != "$oldest" ]; then
    left_out "$language" "version $found is installed, and they need $oldest"
    return 1
  fi
}
left_out() {
  echo "${0##*/}: left out the clients in $1: $2" >&2
}

# Debian has venv in a separate package.
has_venv() {
  python3 -c 'import venv, ensurepip' 2>/dev/null || {
    left_out Python 'the module venv is not installed'
    return 1
  }
}

# Checks whether the files changed since the last build: changed NAME FILE...
# Records the build: made NAME.
changed() {
  local name=$1
  shift
  cat "$@" | cksum >"$output/$name.now"
  ! cmp -s "$output/$name.now" "$output/$name.made"
}
made() {
  mv "$output/$1.now" "$output/$1.made"
}

# Writes the program that the runner starts: client NAME COMMAND...
# It passes its own arguments on.
client() {
  local file=$output/bin/$1
  shift
  printf '#!/bin/sh\nexec %s"$@"\n' "$(printf '%q ' "$@")" >"$file"
  chmod +x "$file"
}

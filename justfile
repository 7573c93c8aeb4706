# Short names for what CONTRIBUTING.md explains.

# Everything a merge needs
ci:
    ./.ci/run

# All tests, or those that the arguments choose
test *args:
    ./scripts/test {{args}}

# Formatting, and what clippy can mend by itself
fix:
    cargo clippy --workspace --all-targets --all-features --fix --allow-dirty --allow-staged
    cargo fmt --all

# Races with lock clients of other languages
interop *args:
    ./scripts/interop {{args}}

# The figures of one bench
bench name:
    cargo bench -p benches --bench {{name}}

# The documentation as docs.rs would show it, in a browser
doc:
    cargo doc --workspace --no-deps --all-features --open

# The tour, without a server
quickstart:
    cargo run -p examples --example quickstart

# Short names for the commands that CONTRIBUTING.md explains.

# Runs all checks that a merge needs
ci:
    ./.ci/run

# Runs the tests of the library, or those that the arguments select
test *args:
    ./scripts/test {{args}}

# Tests the web frameworks, the flash sale and lockctl
test-apps *args:
    ./scripts/test-apps {{args}}

# Tests TLS, Sentinel and Redis Cluster.
topologies *args:
    ./scripts/topologies {{args}}

# Checks the sources without running them
lint *args:
    ./scripts/lint {{args}}

# Formats the code, and applies clippy's fixes
fix:
    cargo clippy --workspace --all-targets --all-features --fix --allow-dirty --allow-staged
    cargo fmt --all

# Explores the larger configurations of the model
model:
    ./scripts/model

# Runs the fault suite
faults *args:
    ./scripts/faults {{args}}

# Simulates many clients and faults in virtual time
simulate *args:
    ./scripts/simulate {{args}}

# Gives the parsers inputs that are nearly right
fuzz *args:
    ./scripts/fuzz {{args}}

# Shows the flash sale in the browser
flash-sale *args:
    cargo run -p flash-sale -- {{args}}

# Tests the flash sale in Chromium and with PostgreSQL
browser *args:
    ./scripts/browser {{args}}

# Races lock clients in other languages
interop *args:
    ./scripts/interop {{args}}

# Runs the mutants
mutants *args:
    ./scripts/mutants {{args}}

# Runs all benches, or one: `just bench --bench overhead`
bench *args:
    cargo bench -p benches {{args}}

# Compares ratios and counts of the benches with the committed ones
bench-guard *args:
    ./scripts/bench-guard {{args}}

# Compares the speed with other libraries
peers *args:
    ./scripts/peers {{args}}

# Opens the documentation in a browser, with all features
doc:
    cargo doc --workspace --no-deps --all-features --open

# Runs the quickstart, without a server
quickstart:
    cargo run -p examples --example quickstart

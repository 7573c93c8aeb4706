use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x")]
async fn longer<'a>(short: &str, long: &'a str) -> Result<&'a str, LockError> {
    if long.is_empty() {
        return Ok(short);
    }
    Ok(long)
}

#[distributed_lock(name = "x")]
async fn at_the_end<'a>(short: &str, long: &'a str) -> Result<&'a str, LockError> {
    let _ = long;
    Ok(short)
}

struct Shelf(String);

impl Shelf {
    #[distributed_lock(name = "x")]
    async fn item<'a>(&self, other: &'a str) -> Result<&'a str, LockError> {
        let item = self.0.as_str();
        Ok(if other.is_empty() { item } else { other })
    }
}

#[distributed_lock(name = "x", on_error = |_| "")]
async fn answered<'a>(short: &str, long: &'a str) -> &'a str {
    let _ = long;
    short
}

fn main() {}

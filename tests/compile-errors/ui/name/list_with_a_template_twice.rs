use lock_core::{LockError, distributed_lock};

const AUDIT: &str = "audit";

#[distributed_lock(name = ["account:{from}", "account:{to}", "account:{from}", "account:{ r#from }"])]
async fn transfer(from: u64, to: u64) -> Result<(), LockError> {
    let _ = (from, to);
    Ok(())
}

struct Account {
    id: (u64, u64),
}

impl Account {
    #[distributed_lock(name = [AUDIT, "a:{self.id.0}", r"a:{self.r#id.0}", "\x61:{ self.id.0 }", &AUDIT], hash_tag = "x")]
    async fn close(&self) -> Result<(), LockError> {
        Ok(())
    }

    // Two calls may return different names.
    #[distributed_lock(name = [self.next(), self.next(), "b:{self.id.0}", "b:{self.id.1}"])]
    async fn open(&self) -> Result<(), LockError> {
        Ok(())
    }

    fn next(&self) -> String {
        self.id.0.to_string()
    }
}

fn main() {}

use std::future::Future;
use std::pin::Pin;

use lock_core::{LockError, distributed_lock};

type Boxed<'a> = Pin<Box<dyn Future<Output = Result<u8, LockError>> + Send + 'a>>;

trait Ship {
    fn ship<'a>(&'a self, pair: (u8, u8)) -> Boxed<'a>;
}

struct Van;

impl Ship for Van {
    // `#[async_trait]` expands a pattern to this.
    #[distributed_lock(name = "van:{left}")]
    fn ship<'a>(
        &'a self,
        __arg1: (u8, u8),
    ) -> Pin<Box<dyn Future<Output = Result<u8, LockError>> + Send + 'a>> {
        Box::pin(async move {
            let (left, right) = __arg1;
            Ok(left + right)
        })
    }
}

fn main() {}

use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order")]
enum Order {
    Paid,
}

fn main() {}

use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order:{id}")]
struct OrderLock {
    id: u64,
    customer: String,
}

#[derive(Lock)]
#[lock(name = format!("item:{}", self.0), mode = read_write)]
struct Item(u64, u8);

#[derive(Lock)]
#[lock(name = "page:{id}", hash_tag = "{site}")]
struct Page {
    #[lock(not_in_name)]
    id: u64,
    site: u64,
    #[lock(skip)]
    title: String,
}

#[derive(Lock)]
#[lock(name = "page:{id}")]
struct Named {
    #[lock(not_in_name)]
    id: u64,
}

fn main() {}

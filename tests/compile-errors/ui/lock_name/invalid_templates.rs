use lock_core::lock_name;

fn f(id: u64) {
    let _ = lock_name!("order:{}");
    let _ = lock_name!("order:{id}", id);
    let _ = lock_name!("order:{0}", id);
    let _ = lock_name!("order:{other}");
    let _ = lock_name!("order:{}", Some(id));
    let _ = lock_name!(id);
}

fn main() {}

use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "mailer", permits = count)]
struct Mailer {
    count: u32,
}

fn main() {}

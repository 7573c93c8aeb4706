use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "mailer", mode = read_write, permits = 4)]
struct Mailer;

fn main() {}

use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "mailer", permits = 2, weight = 3)]
struct Mailer;

fn main() {}

//! `victim`: a CUDA program of a few lines that does what it is told, step by step, and says what came of
//! it. It finds the driver at run time, by `dlsym` or, with `VICTIM_DOOR=getproc`, by `cuGetProcAddress`.

mod arrays;
mod cards;
mod children;
mod churn;
mod code;
mod denials;
mod doors;
mod driver;
mod graphs;
mod holds;
mod launches;
mod memory;
mod nvml;
mod objects;
mod script;
mod shared;
mod symbols;

fn main() {
    // Whoever runs the tests in the background has shells that ignore the interrupt, and that is inherited.
    // SAFETY: the default action is always a valid one, and no other thread runs yet.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    script::run(driver::Driver::open());
}

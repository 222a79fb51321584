//! `victim`: a small CUDA program that performs steps one by one and reports the results. It finds the driver at run
//! time, by `dlsym` or, with `VICTIM_DOOR=getproc`, by `cuGetProcAddress`.

mod arrays;
mod cards;
mod children;
mod churn;
mod code;
mod contents;
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
    // A shell that runs tests in the background ignores SIGINT, and its children inherit that.
    // SAFETY: SIG_DFL is always valid, and no other thread runs yet.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    script::run(driver::Driver::open());
}

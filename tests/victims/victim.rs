//! `victim`: a CUDA program of a few lines that does what it is told, step by step, and says what came of
//! it. It finds the driver at run time, by `dlsym` or, with `VICTIM_DOOR=getproc`, by `cuGetProcAddress`.

mod cards;
mod children;
mod churn;
mod doors;
mod driver;
mod memory;
mod nvml;
mod objects;
mod script;

fn main() {
    script::run(driver::Driver::open());
}

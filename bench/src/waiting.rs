//! Waiting for conditions in benchmarks of a running kernel.

use std::error::Error;
use std::time::{Duration, Instant};

pub type Fallible<T> = Result<T, Box<dyn Error>>;

const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

pub fn wait_for(what: &str, mut is_so: impl FnMut() -> Fallible<bool>) -> Fallible<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        if Instant::now() > deadline {
            return Err(format!("not within {} s: {what}", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

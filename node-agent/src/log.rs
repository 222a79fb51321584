//! Sets up the log: standard error, as lines for people or JSON for machines.

use crate::options::AgentOptions;

pub(crate) fn start(options: &AgentOptions) {
    let builder = tracing_subscriber::fmt()
        .with_max_level(options.log)
        .with_writer(std::io::stderr);
    if options.is_json {
        builder.json().init()
    } else {
        builder.with_ansi(false).with_target(false).init()
    }
}

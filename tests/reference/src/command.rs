//! Command line reference, generated from the parser.

use std::fmt::Write;

use clap::{Arg, Command};

use crate::table::{cell, code, table};

/// The heading level of the commands.
#[derive(Clone, Copy, Debug)]
pub struct HeadingDepth(pub usize);

/// All commands that are not hidden, each with a heading, its usage and its arguments. Global options are listed once,
/// at the end.
#[must_use]
pub fn commands(mut program: Command, depth: HeadingDepth) -> String {
    program.build();
    let mut text = String::new();
    let hashes = "#".repeat(depth.0);
    for command in shown(&program) {
        let name = command.get_bin_name().unwrap_or(command.get_name());
        let _ = writeln!(text, "{hashes} `{name}`\n");
        let _ = writeln!(text, "{}.\n", about(command));
        let _ = writeln!(text, "```text\n{}\n```\n", usage(command));
        let own: Vec<&Arg> = arguments(command)
            .filter(|arg| !arg.is_global_set())
            .collect();
        if !own.is_empty() {
            let _ = writeln!(text, "{}", rows(own));
        }
        if let Some(more) = command.get_after_help() {
            let _ = writeln!(text, "{}\n", cell(&more.to_string()));
        }
    }
    let global: Vec<&Arg> = arguments(&program)
        .filter(|arg| arg.is_global_set())
        .collect();
    if !global.is_empty() {
        let _ = writeln!(
            text,
            "{hashes} Options of every command\n\n{}",
            rows(global)
        );
    }
    text
}

/// The options of a program without commands, a table for each help heading.
#[must_use]
pub fn options(mut program: Command, depth: HeadingDepth) -> String {
    program.build();
    let hashes = "#".repeat(depth.0);
    let mut headings: Vec<_> = arguments(&program).map(Arg::get_help_heading).collect();
    headings.dedup();
    let mut text = String::new();
    for heading in headings {
        let own = arguments(&program).filter(|arg| arg.get_help_heading() == heading);
        let title = heading.unwrap_or("Options");
        let _ = writeln!(text, "{hashes} {title}\n\n{}", rows(own.collect()));
    }
    text
}

fn shown(program: &Command) -> impl Iterator<Item = &Command> {
    let commands = program.get_subcommands();
    commands.filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// The arguments, without help and version, which every program has.
fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    let usual = ["help", "version"];
    let arguments = command.get_arguments();
    arguments.filter(move |arg| !arg.is_hide_set() && !usual.contains(&arg.get_id().as_str()))
}

fn about(command: &Command) -> String {
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    cell(about.trim_end_matches('.'))
}

fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    usage.trim_start_matches("Usage: ").trim().to_owned()
}

fn rows(arguments: Vec<&Arg>) -> String {
    let rows = arguments.into_iter().map(|arg| {
        let (help, said) = help(arg);
        [form(arg), default(arg).unwrap_or(said), help]
    });
    table(["argument or option", "default", "meaning"], rows)
}

/// The argument as it is typed.
fn form(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let names = names
        .iter()
        .map(|name| name.to_string())
        .collect::<Vec<_>>()
        .join(" ");
    let takes = arg.get_action().takes_values();
    match arg.get_long() {
        Some(long) if takes => code(&format!("--{long} {names}")),
        Some(long) => code(&format!("--{long}")),
        None => code(&names),
    }
}

fn default(arg: &Arg) -> Option<String> {
    let defaults = arg.get_default_values();
    let defaults: Vec<_> = defaults
        .iter()
        .map(|value| code(&value.to_string_lossy()))
        .collect();
    let is_switch = !arg.get_action().takes_values();
    if is_switch || arg.is_hide_default_value_set() || defaults.is_empty() {
        return None;
    }
    Some(defaults.join(", "))
}

/// Its description, and its default if the description does not contain it.
fn help(arg: &Arg) -> (String, String) {
    let help = arg.get_long_help().or(arg.get_help());
    let help = cell(&help.map(ToString::to_string).unwrap_or_default());
    let (help, default) = match help.split_once("[default: ") {
        Some((help, default)) => (
            help.trim().to_owned(),
            default.trim_end_matches([']', '.']).to_owned(),
        ),
        None => (help, String::new()),
    };
    let mut help = help.trim_end_matches('.').to_owned();
    let values = arg.get_possible_values();
    let values = values
        .iter()
        .filter(|value| !value.is_hide_set() && arg.get_action().takes_values());
    let values: Vec<String> = values
        .map(|value| match value.get_help() {
            Some(why) => format!("{} ({})", code(value.get_name()), cell(&why.to_string())),
            None => code(value.get_name()),
        })
        .collect();
    if !values.is_empty() {
        help.push_str(&format!(": {}", values.join(", ")));
    }
    if let Some(variable) = arg.get_env() {
        help.push_str(&format!(
            " (variable {})",
            code(&variable.to_string_lossy())
        ));
    }
    if arg.is_required_set() {
        return (help, "required".to_owned());
    }
    (help, default)
}

#[cfg(test)]
mod tests {
    use clap::builder::PossibleValuesParser;

    use super::*;

    fn program() -> Command {
        let way = Arg::new("way")
            .long("way")
            .value_name("WAY")
            .help("How it goes.")
            .default_value("fast")
            .value_parser(PossibleValuesParser::new(["fast", "slow"]));
        let file = Arg::new("file")
            .value_name("FILE")
            .required(true)
            .help("Where it is");
        let quiet = Arg::new("quiet")
            .long("quiet")
            .global(true)
            .help("Say less")
            .num_args(0);
        let run = Command::new("run").about("Runs it").arg(way).arg(file);
        let hidden = Command::new("inner").hide(true);
        Command::new("prog")
            .arg(quiet)
            .subcommand(run)
            .subcommand(hidden)
    }

    #[test]
    fn a_command_has_its_usage_and_its_rows() {
        let text = commands(program(), HeadingDepth(2));
        assert!(text.contains("## `prog run`\n\nRuns it.\n"), "{text}");
        assert!(
            text.contains("| `--way WAY` | `fast` | How it goes: `fast`, `slow` |"),
            "{text}"
        );
        assert!(
            text.contains("| `FILE` | required | Where it is |"),
            "{text}"
        );
        assert!(
            !text.contains("inner") && !text.contains("--help"),
            "{text}"
        );
    }

    #[test]
    fn options_of_all_commands_stand_once() {
        let text = commands(program(), HeadingDepth(3));
        assert!(text.contains("### Options of every command"), "{text}");
        assert_eq!(text.matches("`--quiet`").count(), 1, "{text}");
    }
}

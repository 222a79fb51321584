//! The command line as a person uses it: its output and its exit codes.

use std::os::unix::process::ExitStatusExt;

use apportion_tests::{
    CARD, CONTEXT, CommandOutput, MIB, PATIENCE, TestHost, built, cards, eventually,
};
use nix::sys::signal::Signal;

mod mistakes;
mod stopped;

#[test]
fn without_a_driver_it_says_so_and_names_the_simulated_cards() {
    let host = TestHost::bare();
    // An empty library under NVML's name hides the real driver on any machine.
    let empty = host.dir().join("libnvidia-ml.so.1");
    std::fs::write(&empty, "").expect("the folder is writable");
    for words in [
        &["run", "--gpu-memory", "100", "--", "true"][..],
        &["top", "--once"],
        &["gpus"],
    ] {
        let mut command = host.staged("apportion");
        let said = CommandOutput::by(command.args(words).env("LD_LIBRARY_PATH", host.dir()));
        let line = said.fails_in_one_line(1);
        assert!(line.contains("--sim"), "{line}");
    }
    eventually(PATIENCE, "nothing is left behind", || {
        host.leftovers().is_empty()
    });
    assert!(!host.instance().exists(), "nothing was simulated");
}

#[test]
fn the_exit_status_is_the_commands() {
    let host = TestHost::new();
    for code in [0, 1, 7, 64, 127, 255] {
        let said = host.run(
            &["--gpu-memory", "100"],
            &["sh", "-c", &format!("exit {code}")],
        );
        assert_eq!(
            (said.code(), said.out.as_str(), said.err.as_str()),
            (Some(code), "", "")
        );
    }
    for signal in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGSEGV] {
        let script = format!("kill -{} $$", signal as i32);
        let said = host.run(&["--gpu-memory", "100"], &["sh", "-c", &script]);
        assert_eq!(said.status.signal(), Some(signal as i32), "{said:?}");
    }
}

#[test]
fn the_command_gets_its_words_input_and_environment_untouched() {
    let host = TestHost::new();
    let said = host.run(
        &["--gpu-memory", "100"],
        &["printf", "%s|", "a b", "--sim", "--", "*", ""],
    );
    assert_eq!(said.well().out, "a b|--sim|--|*||");
    let mut command = host.simulated("run");
    command.args(["--gpu-memory", "100", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let said = CommandOutput::by(command.env("LD_PRELOAD", "")).well();
    let preloaded = own_preloads(&said);
    assert_eq!(preloaded.len(), 3, "{said:?}");
}

#[test]
fn a_preload_of_the_callers_stays() {
    let host = TestHost::new();
    let mut command = host.simulated("run");
    command.args(["--gpu-memory", "100", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let said = CommandOutput::by(command.env("LD_PRELOAD", "libm.so.6")).well();
    assert_eq!(own_preloads(&said)[3..], ["libm.so.6"], "{said:?}");
}

/// The list of preloaded libraries in a command's output. The hooks come first, then the simulated runtimes, so that a
/// runtime's driver calls go through the hooks.
fn own_preloads(said: &CommandOutput) -> Vec<String> {
    let names = said.out.trim().split(':');
    let names: Vec<String> = names
        .map(|path| path.rsplit('/').next().unwrap_or(path).to_owned())
        .collect();
    let own = ["libapportion_cuda.so", "libcudart.so.12", "libcudart.so.13"];
    assert_eq!(names[..3], own, "{said:?}");
    names
}

#[test]
fn the_grant_is_one_line_of_json() {
    let host = TestHost::new();
    let said = host
        .run(
            &["--gpu-memory", "2000", "--name", "me", "--json"],
            &["true"],
        )
        .well();
    let grant: serde_json::Value = serde_json::from_str(&said.err).expect("one line of JSON");
    assert_eq!(grant["name"], "me");
    assert_eq!(grant["cards"][0]["uuid"], host.card(0).uuid);
    assert_eq!(grant["cards"][0]["limit_bytes"], 2000 * MIB);
    assert_eq!(grant["is_simulated"], true);
}

#[test]
fn top_shows_each_card_and_each_allocation() {
    let host = TestHost::new();
    let mut victim = host.victim(&["--gpu-memory", "2000", "--name", "shown"]);
    victim.step("alloc 700M").ok();
    victim.step("alloc 4G").refused();
    eventually(PATIENCE, "the sample is taken", || {
        let grant = &host.top()["allocations"][0]["grants"][0];
        grant["nvml_bytes"] == 700 * MIB + CONTEXT
    });
    let top = host.top();
    let card = &top["cards"][0];
    assert_eq!(card["allocatable_bytes"], CARD);
    assert_eq!(card["granted_bytes"], 2000 * MIB);
    assert_eq!(card["free_bytes"], CARD - 2000 * MIB);
    assert_eq!(card["used_bytes"], 700 * MIB + CONTEXT);
    assert_eq!(card["unmanaged_bytes"], 0);
    assert_eq!(card["health"], "healthy");
    let allocation = &top["allocations"][0];
    assert_eq!(allocation["name"], "shown");
    assert_eq!(allocation["state"], "allocated");
    assert_eq!(allocation["enforcement"], "attached");
    assert_eq!(allocation["holder"]["pid"], victim.pid());
    assert_eq!(allocation["processes"][0]["pid"], victim.pid());
    assert_eq!(allocation["processes"][0]["name"], "victim");
    let grant = &allocation["grants"][0];
    assert_eq!(grant["limit_bytes"], 2000 * MIB);
    assert_eq!(grant["used_bytes"], 700 * MIB + CONTEXT);
    assert_eq!(grant["context_bytes"], CONTEXT);
    assert_eq!(grant["overhead_bytes"], 0);
    assert_eq!(grant["peak_bytes"], 700 * MIB + CONTEXT);
    assert_eq!(grant["denied_count"], 1);
    assert_eq!(grant["denied_bytes"], 4096 * MIB);

    let once = CommandOutput::by(host.simulated("top").arg("--once"))
        .well()
        .out;
    for part in ["shown", "2000", "1000", "10000"] {
        assert!(once.contains(part), "{part} is not in {once}");
    }
}

#[test]
fn gpus_lists_what_each_card_can_still_give() {
    let host = TestHost::with(&cards(2));
    let _victim = host.victim(&["--gpu-memory", "2000"]).step("total");
    let listed = CommandOutput::by(host.simulated("gpus").arg("--json"))
        .well()
        .json();
    let listed = listed.as_array().expect("a list");
    assert_eq!(listed.len(), 2);
    for (index, card) in listed.iter().enumerate() {
        assert_eq!(card["uuid"], host.card(index).uuid);
        assert_eq!(card["allocatable_bytes"], CARD);
        assert_eq!(card["model"], host.card(index).name);
    }
    let text = CommandOutput::by(&mut host.simulated("gpus")).well().out;
    assert!(
        text.contains(&host.card(0).uuid) && text.contains(&host.card(1).uuid),
        "{text}"
    );
}

#[test]
fn hooks_lists_every_symbol_that_the_library_exports() {
    let host = TestHost::bare();
    let said = CommandOutput::by(host.apportion("hooks").arg("--json"))
        .well()
        .json();
    let rows = said.as_array().expect("a list");
    let symbols: Vec<_> = rows
        .iter()
        .filter_map(|row| row["symbol"].as_str())
        .collect();
    for symbol in [
        "cuMemAlloc_v2",
        "cuMemGetInfo_v2",
        "cuGetProcAddress_v2",
        "cuMemFreeAsync_ptsz",
    ] {
        assert!(symbols.contains(&symbol), "{symbol} is not in {symbols:?}");
    }
    let text = CommandOutput::by(&mut host.apportion("hooks")).well().out;
    assert!(symbols.iter().all(|symbol| text.contains(symbol)));
    assert_eq!(host.leftovers(), []);
}

#[test]
fn hooks_lists_what_is_left_alone_and_why() {
    let host = TestHost::bare();
    let said = CommandOutput::by(host.apportion("hooks").args(["--all", "--json"])).well();
    let said = said.json();
    let hooked = said["hooked"].as_array().expect("a list");
    let left_alone = said["unhooked_functions"].as_array().expect("a list");
    let standing = |name: &str| {
        let found = left_alone.iter().find(|function| function["name"] == name);
        found.and_then(|function| function["effect"].as_str())
    };
    assert_eq!(standing("cuMemAllocHost"), Some("takes nothing"));
    assert_eq!(standing("cuStreamCreate"), Some("overhead"));
    assert_eq!(standing("cuGetExportTable"), Some("gap"));
    assert_eq!(standing("cuMemMapArrayAsync"), None);
    assert_eq!(standing("cuModuleLoadData"), None);
    assert_eq!(standing("cuMemAlloc"), None);
    let text = CommandOutput::by(host.apportion("hooks").arg("--all"))
        .well()
        .out;
    for function in left_alone {
        let name = function["name"].as_str().expect("a name");
        let reason = function["reason"].as_str().expect("a reason");
        let line = text
            .lines()
            .find(|line| line.split(' ').next() == Some(name));
        assert!(line.is_some_and(|line| line.contains(reason)), "{name}");
    }
    assert_eq!(text.lines().count(), hooked.len() + left_alone.len() + 3);
}

#[test]
fn doctor_finds_what_is_there_and_says_what_to_do() {
    let host = TestHost::new();
    let said = CommandOutput::by(host.simulated("doctor").arg("--json"));
    assert!(said.json().is_array() || said.json().is_object());
    let text = CommandOutput::by(&mut host.simulated("doctor"));
    assert!(text.out.contains("libapportion_cuda.so"), "{text:?}");
}

#[test]
fn completions_and_help_are_there_for_every_command() {
    let host = TestHost::bare();
    for shell in ["bash", "zsh", "fish"] {
        let script = CommandOutput::by(host.apportion("completions").arg(shell))
            .well()
            .out;
        assert!(
            script.contains("gpu-fraction") && script.contains("doctor"),
            "{shell}"
        );
    }
    for command in [
        "run",
        "sim",
        "top",
        "gpus",
        "resize",
        "suspend",
        "resume",
        "hooks",
        "doctor",
        "demo",
        "completions",
    ] {
        let help = CommandOutput::by(host.apportion(command).arg("--help"))
            .well()
            .out;
        assert!(help.contains("Usage:"), "{command}: {help}");
    }
    assert!(
        CommandOutput::by(&mut host.apportion("--version"))
            .well()
            .out
            .starts_with("apportion ")
    );
    assert_eq!(host.leftovers(), []);
}

#[test]
fn sim_runs_a_command_on_cards_of_the_shape_that_was_asked_for() {
    let host = TestHost::bare();
    let mut command = host.apportion("sim");
    command.args([
        "--gpus",
        "3",
        "--gpu-memory",
        "8Gi",
        "--driver",
        "615",
        "--",
    ]);
    let said = CommandOutput::by(command.arg(built("victim")).args(["count", "nvml"])).well();
    assert!(
        said.out
            .starts_with(&format!("count 0 3\nnvml 0 {} ", 8192 * MIB)),
        "{said:?}"
    );
    let mut second = host.apportion("sim");
    second
        .args(["--gpus", "3", "--gpu-memory", "8Gi", "--"])
        .arg(built("victim"));
    let said = CommandOutput::by(second.args(["count"])).well();
    assert_eq!(said.out, "count 0 3\n", "commands share the cards");
}

#[test]
fn the_demonstration_succeeds_on_simulated_cards() {
    let host = TestHost::bare();
    let said = CommandOutput::by(&mut host.simulated("demo")).well();
    assert!(said.out.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{said:?}");
    assert!(!said.out.contains('\x1b'), "no colours: {said:?}");
    assert!(said.out.lines().count() <= 24, "one screen: {said:?}");
    let wide = said.out.lines().find(|line| line.chars().count() > 100);
    assert_eq!(wide, None);
}

#[test]
fn the_demonstration_prints_its_steps_where_that_is_asked_for() {
    let host = TestHost::bare();
    let said = CommandOutput::by(host.simulated("demo").arg("--verbose")).well();
    for part in [
        "--name demo-first",
        "cuMemGetInfo",
        "apportion_container_memory_limit_bytes",
    ] {
        assert!(said.out.contains(part), "{part}: {said:?}");
    }
}

/// `cargo xtask docs --update` draws the picture.
#[test]
fn the_picture_of_the_demonstration_shows_what_it_prints() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/images/demo.svg");
    let picture = std::fs::read_to_string(path).expect("the picture is there");
    let mut text = String::new();
    let mut is_tag = false;
    for letter in picture.chars() {
        match letter {
            '<' => is_tag = true,
            '>' => is_tag = false,
            _ if !is_tag => text.push(letter),
            _ => {}
        }
    }
    let text = text
        .replace("&gt;", ">")
        .replace("&lt;", "<")
        .replace("&amp;", "&");
    let host = TestHost::bare();
    let said = CommandOutput::by(&mut host.simulated("demo")).well();
    // The suggested next command begins with this program's path.
    let shown = said
        .out
        .lines()
        .take_while(|line| !line.starts_with("Next:"));
    for line in shown {
        assert!(
            text.contains(line.trim_end()),
            "run cargo xtask docs --update; not in the picture: {line:?}"
        );
    }
}

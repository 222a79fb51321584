//! Wrong use of the command line: one line of error each, and nothing is left behind.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use apportion_tests::{CommandOutput, TestHost};

#[test]
fn each_mistake_is_one_line_and_leaves_nothing_behind() {
    let host = TestHost::new();
    let unknown = "GPU-00000000-0000-0000-0000-000000000000";
    let mistakes: &[(i32, &[&str])] = &[
        (64, &["run", "--gpu-fraction", "0", "--", "true"]),
        (64, &["run", "--gpu-fraction", "1.5", "--", "true"]),
        (64, &["run", "--gpu-fraction", "-0.5", "--", "true"]),
        (64, &["run", "--gpu-fraction", "NaN", "--", "true"]),
        (64, &["run", "--gpu-memory", "2000Ti", "--", "true"]),
        (64, &["run", "--gpu-memory", "0", "--", "true"]),
        (64, &["run", "--gpu-memory", "1", "--", "true"]),
        (64, &["run", "--gpu-memory", "-5", "--", "true"]),
        (
            64,
            &["run", "--gpu-memory", "99999999999999999999", "--", "true"],
        ),
        (
            64,
            &[
                "run",
                "--gpu-memory",
                "5",
                "--gpu-fraction",
                "0.5",
                "--",
                "true",
            ],
        ),
        (64, &["run", "--gpus", "0", "--", "true"]),
        (64, &["run", "--gpu", "card-one", "--", "true"]),
        (64, &["run", "--no-such-option", "--", "true"]),
        (64, &["run"]),
        (64, &["run", "--gpu-memory", "100"]),
        (64, &["no-such-command"]),
        (64, &["resize", "nobody"]),
        (64, &["suspend"]),
        (64, &["resume", "one", "two"]),
        (64, &["sim", "--driver", "1", "--", "true"]),
        (64, &["sim", "--gpus", "0", "--", "true"]),
        (64, &["sim", "--gpu-memory", "2000Ti", "--", "true"]),
        (64, &["completions", "cmd.exe"]),
        (
            1,
            &["run", "--gpu-memory", "100", "--", "no-such-command-here"],
        ),
        (1, &["run", "--gpu-memory", "100", "--", "/etc/passwd"]),
        (
            1,
            &["run", "--gpu-memory", "100", "--gpu", unknown, "--", "true"],
        ),
        (1, &["run", "--gpu-memory", "99999", "--", "true"]),
        (1, &["run", "--gpu-fraction", "0.0001", "--", "true"]),
        (1, &["run", "--gpus", "2", "--", "true"]),
        (1, &["resize", "nobody", "--gpu-memory", "100"]),
        (1, &["suspend", "nobody"]),
        (1, &["resume", "nobody"]),
    ];
    for (code, words) in mistakes {
        let said = CommandOutput::by(host.staged("apportion").arg("--sim").args(*words));
        said.fails_in_one_line(*code);
        let allocations = host.top()["allocations"].as_array().map(Vec::len);
        assert_eq!(allocations, Some(0), "{words:?}");
    }
    let accounts = std::fs::read_dir(host.instance().join("accounts"));
    assert_eq!(accounts.map_or(0, Iterator::count), 0);
}

#[test]
fn mistakes_of_one_line_are_all_named() {
    let host = TestHost::bare();
    let said = host.run(&["--gpu-memory", "2000Ti", "--gpus", "none"], &["true"]);
    let line = said.fails_in_one_line(64);
    assert!(line.contains("2000Ti") && line.contains("none"), "{line}");
    assert_eq!(host.leftovers(), []);
    assert!(!host.instance().exists(), "nothing was made");
}

#[test]
fn a_socket_that_cannot_be_used_is_named() {
    let host = TestHost::bare();
    std::fs::create_dir(host.instance()).expect("the folder is writable");
    let socket = host.instance().join("agent.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o0)).expect("it is ours");
    drop(listener);
    // Root can open any socket, so it finds one that nothing serves. Then the command starts an agent.
    if nix::unistd::geteuid().is_root() {
        assert!(
            host.run(&["--gpu-memory", "100"], &["true"])
                .status
                .success()
        );
        return;
    }
    let line = host
        .run(&["--gpu-memory", "100"], &["true"])
        .fails_in_one_line(1)
        .to_owned();
    assert!(line.contains("agent.sock"), "{line}");
}

#[test]
fn a_socket_that_is_something_else_is_named() {
    let host = TestHost::bare();
    std::fs::create_dir_all(host.instance().join("agent.sock")).expect("the folder is writable");
    let said = host.run(&["--gpu-memory", "100"], &["true"]);
    assert!(said.fails_in_one_line(1).contains("agent.sock"), "{said:?}");
}

#[test]
fn a_folder_that_is_a_file_is_named() {
    let host = TestHost::bare();
    let file = host.dir().join("file");
    std::fs::write(&file, "").expect("the folder is writable");
    let mut command = host.simulated("run");
    command
        .args(["--gpu-memory", "100", "--", "true"])
        .env("APPORTION_DIR", &file);
    let said = CommandOutput::by(&mut command);
    assert!(said.fails_in_one_line(1).contains("file"));
    assert_eq!(host.leftovers(), []);
}

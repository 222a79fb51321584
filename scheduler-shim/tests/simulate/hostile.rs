//! Files that are made to keep `simulate` busy.

use std::time::{Duration, Instant};

use crate::run;

/// Refusing such a file takes some tenths of a second, and the machine may be busy. Each of these files once took 20
/// seconds to minutes.
const AT_ONCE: Duration = Duration::from_secs(5);

/// The message with which a text is refused, at once and on one line.
fn refusal(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects.yaml");
    std::fs::write(&path, text).unwrap();
    let begun = Instant::now();
    let output = run(&[path], &[]);
    let took = begun.elapsed();
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn deep_nesting_is_refused_at_once() {
    let deep = "it is nested more than 128 levels deep";
    for text in [
        "[{a: ".repeat(40_000),
        r#"{"a":["#.repeat(130_000),
        format!("kind: Pod\nmetadata: {}", "[ # ]\n".repeat(30_000)),
        format!(
            "kind: Pod\ntext: |\n  [[\nmore: \"[\"\nlast: {}",
            "{".repeat(100_000)
        ),
    ] {
        let said = refusal(&text);
        assert!(said.contains(deep), "{said}");
    }
    let said = refusal(&format!("{}a", "- ".repeat(100_000)));
    assert!(said.contains("recursion limit exceeded"), "{said}");
}

#[test]
fn aliases_that_multiply_are_refused_at_once() {
    let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 9].join(",");
        text += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    let said = refusal(&text);
    assert!(said.contains("repetition limit exceeded"), "{said}");
}

#[test]
fn enormous_yaml_is_refused_at_once() {
    let said = refusal(&format!("kind: {}", "a".repeat(65 << 20)));
    assert!(said.contains("it is YAML of more than 64 MiB"), "{said}");
}

#[test]
fn brackets_in_texts_are_not_nesting() {
    let script = "    echo \"[[[[ {{{{ it's\n".repeat(100);
    let text = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n  script: |\n{script}  plain: don't [[[[ {{{{\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects.yaml");
    std::fs::write(&path, text).unwrap();
    let output = run(&[path], &[]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

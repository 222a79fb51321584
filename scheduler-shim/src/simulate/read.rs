//! Reads objects from files: YAML documents, JSON, and lists of either.
//!
//! A file that can't be read as what it claims to be is an error. An invalid object is not: its reader warns about
//! it.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use apportion_exit::CommandFailure;
use serde_json::Value;

mod documents;
mod nesting;

use documents::{documents, flatten};

/// The largest file that is read.
const LARGEST: u64 = 256 << 20;

/// All objects of a file.
pub(super) fn objects(path: &Path) -> Result<Vec<Value>, CommandFailure> {
    let text = text(path).map_err(|error| {
        CommandFailure::new(format!("failed to read {}: {error}", path.display()))
            .hint("give a file with Kubernetes objects, or - for standard input")
    })?;
    let documents = documents(&text).map_err(|error| {
        CommandFailure::new(format!("failed to read {}: {error}", path.display()))
            .hint("the file must be YAML or JSON, as kubectl get -o yaml prints it")
    })?;
    let mut objects = Vec::new();
    for document in documents {
        flatten(document, &mut objects);
    }
    if let Some(odd) = objects.iter().find(|object| !object.is_object()) {
        let odd: String = odd.to_string().chars().take(40).collect();
        return Err(CommandFailure::new(format!(
            "failed to read {}: {odd} is not a Kubernetes object",
            path.display()
        ))
        .hint("an object has apiVersion, kind and metadata"));
    }
    Ok(objects)
}

/// The text of a file; an error if it is larger than [`LARGEST`].
fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let most = LARGEST + 1;
    if path == Path::new("-") {
        io::stdin().take(most).read_to_end(&mut bytes)?
    } else {
        fs::File::open(path)?.take(most).read_to_end(&mut bytes)?
    };
    if bytes.len() as u64 > LARGEST {
        let why = format!("it is larger than {} MiB", LARGEST >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<String> {
        let mut objects = Vec::new();
        for document in documents(text).expect("the text is YAML or JSON") {
            flatten(document, &mut objects);
        }
        objects
            .iter()
            .map(|object| object["kind"].as_str().unwrap_or("none").to_owned())
            .collect()
    }

    #[test]
    fn reads_documents_and_lists_of_any_form() {
        assert_eq!(kinds("kind: A\n---\n# nothing\n---\nkind: B\n"), ["A", "B"]);
        let list = "kind: List\nitems: [{kind: A}, {kind: BList, items: [{}, {}]}]";
        assert_eq!(kinds(list), ["A", "B", "B"]);
        assert_eq!(kinds(r#"{"kind": "A"} {"kind": "B"}"#), ["A", "B"]);
        assert_eq!(kinds("{kind: A, labels: {x: y}}"), ["A"]);
    }
}

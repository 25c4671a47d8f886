//! The environment of the container as a file of the guest.
//!
//! Invariant: a POSIX shell that reads the file has exactly the values of the request.
//! Failure: none; a name that no shell variable can have is left out, and reported elsewhere.

use podspec::GuestFile;

use crate::vm::model::Environment;

/// Where guests find it, as with the predecessor.
const PATH: &str = "/etc/cloud/environment";
const MODE: u32 = 0o644;

/// The file; `None` without variables.
pub(super) fn file(environment: &Environment) -> Option<GuestFile> {
    let mut content = Vec::new();
    for (name, value) in &environment.0 {
        if !Environment::is_name(name) {
            continue;
        }
        content.extend(name.as_bytes());
        content.extend(b"='");
        for byte in value {
            match byte {
                b'\'' => content.extend(br"'\''"),
                byte => content.push(*byte),
            }
        }
        content.extend(b"'\n");
    }
    (!content.is_empty()).then(|| GuestFile {
        path: PATH.to_owned(),
        mode: MODE,
        content,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_the_values_of_the_request() {
        let values: [&[u8]; 6] = [
            b"plain",
            b"it's \"quoted\" $HOME `date`",
            b"two\nlines\n",
            b"back\\slash",
            b"",
            b"\xff\xfe",
        ];
        let named = values.iter().enumerate();
        let variables = named.map(|(n, value)| (format!("V_{n}"), value.to_vec()));
        let mut environment = Environment(variables.collect());
        environment.0.push(("not.a.name".to_owned(), b"x".to_vec()));
        let file = file(&environment).unwrap();
        assert_eq!((file.path.as_str(), file.mode), (PATH, 0o644));

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("environment");
        std::fs::write(&path, &file.content).unwrap();
        let script =
            "set -u; . \"$1\"; printf '%s|' \"$V_0\" \"$V_1\" \"$V_2\" \"$V_3\" \"$V_4\" \"$V_5\"";
        let output = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&path)
            .output()
            .unwrap();
        assert_eq!(output.stderr, b"");
        let wanted: Vec<u8> = values.iter().flat_map(|v| [*v, b"|"].concat()).collect();
        assert_eq!(output.stdout, wanted);
    }

    #[test]
    fn without_variables_there_is_no_file() {
        assert_eq!(file(&Environment::default()), None);
        let unfit = Environment(vec![("1A".to_owned(), b"x".to_vec())]);
        assert_eq!(file(&unfit), None);
    }
}

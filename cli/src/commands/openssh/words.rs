//! Words of a command that ssh gives to a shell.
//!
//! Invariant: the shell gets each word as it is; `%` is doubled, since ssh replaces what follows a single one.
//! Failure: a word with control characters, which no configuration of ssh can hold.

use anyhow::bail;

use crate::table::printable;

/// A word for a shell, behind the tokens of ssh.
pub(super) fn quoted(word: &str) -> anyhow::Result<String> {
    if word.chars().any(char::is_control) {
        bail!(
            "{:?} has control characters, which a command of ssh cannot have",
            printable(word)
        );
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:@,+".contains(c);
    let text = word.replace('%', "%%");
    if !word.is_empty() && word.chars().all(is_plain) {
        return Ok(text);
    }
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_gets_each_word_as_it_is() {
        for word in [
            "a", "/a b/c", "it's", "$HOME", "`x`", "", "a\\b", "*", "-n=x", "~",
        ] {
            let line = format!("printf %s {}", quoted(word).unwrap());
            let output = std::process::Command::new("sh")
                .args(["-c", &line])
                .output();
            assert_eq!(output.unwrap().stdout, word.as_bytes(), "{word:?}");
        }
        assert_eq!(quoted("50%").unwrap(), "'50%%'");
        assert!(quoted("a\nb").is_err());
    }
}

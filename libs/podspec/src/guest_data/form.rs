//! What cloud-init takes user data for, by their beginning.
//!
//! Invariant: the beginnings are those of cloud-init's `handlers` and `user_data` modules, compared as
//! it compares them: without regard to case, after blanks.
//! Failure: none; what cloud-init ignores is [`Form::Ignored`].

/// How many bytes cloud-init reads for the header of a message with several parts.
const MIME_WITHIN: usize = 4096;
/// Of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// What begins with these words is a map in YAML, unless a longer beginning fits.
const MAP: &str = "#cloud-config";
/// All others.
const BEGINNINGS: [&str; 8] = [
    "#!",
    "#include",
    "#cloud-boothook",
    "#cloud-config-archive",
    "#cloud-config-jsonp",
    "#part-handler",
    "#upstart-job",
    "## template: jinja",
];
/// What editors on Windows write in front of a text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// A form of user data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A map in YAML.
    Map,
    /// Anything else that cloud-init processes: a script, several parts, compressed data.
    Processed,
    /// Nothing.
    Empty,
    /// cloud-init logs a warning and ignores them, for this reason.
    Ignored(&'static str),
}

impl Form {
    pub(super) fn detect(user_data: &[u8]) -> Self {
        let head = &user_data[..user_data.len().min(MIME_WITHIN)];
        let head = head.to_ascii_lowercase();
        let is_message = String::from_utf8_lossy(&head).contains("mime-version:");
        if is_message || user_data.starts_with(&GZIP) {
            return Self::Processed;
        }
        let Ok(text) = std::str::from_utf8(user_data) else {
            return Self::Ignored("they are neither text nor compressed by gzip");
        };
        let text = text.trim_start();
        if text.is_empty() {
            return Self::Empty;
        }
        let begins = |with: &str| {
            let beginning = text.get(..with.len());
            beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(with))
        };
        if BEGINNINGS.into_iter().any(begins) {
            return Self::Processed;
        }
        if begins(MAP) {
            return Self::Map;
        }
        if text.starts_with(BYTE_ORDER_MARK) {
            Self::Ignored("a byte order mark stands before the first line: remove it")
        } else {
            Self::Ignored(
                "the first line says no form: it must be #cloud-config for a map in YAML, or #! and an \
                 interpreter for a script",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("#cloud-config\nusers: []\n", Form::Map)]
    #[case("\n  #Cloud-Config # mine\nusers: []\n", Form::Map)]
    #[case("#!/bin/sh\ntrue\n", Form::Processed)]
    #[case("#include\nhttp://h/x\n", Form::Processed)]
    #[case("#include-once\nhttp://h/x\n", Form::Processed)]
    #[case("#cloud-boothook\ntrue\n", Form::Processed)]
    #[case("#cloud-config-archive\n- {content: x}\n", Form::Processed)]
    #[case("#cloud-config-jsonp\n[]\n", Form::Processed)]
    #[case("#part-handler\n", Form::Processed)]
    #[case("## template: jinja\n#cloud-config\n{{ v1 }}\n", Form::Processed)]
    #[case(
        "Content-Type: multipart/mixed\nMIME-Version: 1.0\n\n",
        Form::Processed
    )]
    #[case(
        "\x1f",
        Form::Ignored(
            "the first line says no form: it must be #cloud-config for a map in YAML, or #! and an interpreter for a script"
        )
    )]
    #[case(" \n", Form::Empty)]
    #[case("", Form::Empty)]
    fn user_data_have_the_form_that_cloud_init_sees(#[case] text: &str, #[case] form: Form) {
        assert_eq!(Form::detect(text.as_bytes()), form);
    }

    #[rstest]
    #[case(b"users: [{name: me}]\n".as_slice(), "first line")]
    #[case(b"\xef\xbb\xbf#cloud-config\n{}\n".as_slice(), "byte order mark")]
    #[case(b"{\"ignition\":{}}".as_slice(), "first line")]
    #[case(b"\xff\xfe#\0c\0".as_slice(), "neither text")]
    fn what_cloud_init_ignores_has_a_reason(#[case] data: &[u8], #[case] words: &str) {
        let form = Form::detect(data);
        assert!(
            matches!(form, Form::Ignored(reason) if reason.contains(words)),
            "{form:?}"
        );
    }

    #[test]
    fn compressed_data_are_passed_on() {
        assert_eq!(Form::detect(b"\x1f\x8b\x08\0"), Form::Processed);
    }
}

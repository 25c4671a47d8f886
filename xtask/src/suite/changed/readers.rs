//! Sources that read a file which is no source: tests that have its path in a string, and programs that it is
//! built into.
//!
//! Invariant: a path in a sentence or a comment reads nothing; nor does one in a program that is not built in: it
//! is of the host of the program. A manifest of cargo has no readers.
//! Failure: none.

use std::collections::BTreeMap;

use super::files;

/// What begins the tests at the end of a source.
const TESTS: &str = "#[cfg(test)]\nmod ";
/// A manifest of cargo, whose name is in the sources of many chores.
const MANIFEST: &str = "Cargo.toml";

/// What precedes the path of a file that is built in.
const BUILT_IN: [&str; 2] = ["include_str!(", "include_bytes!("];

/// A source that reads a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reader<'a> {
    /// The source.
    pub(super) source: &'a str,
    /// Whether only its tests do.
    pub(super) is_test: bool,
}

/// A string that names the file.
#[derive(Debug)]
struct Place {
    at: usize,
    is_built_in: bool,
}

/// The readers of a file.
pub(super) fn all<'a>(file: &str, sources: &'a BTreeMap<String, String>) -> Vec<Reader<'a>> {
    let name = name(file);
    if files::is_source(file) || name == MANIFEST {
        return Vec::new();
    }
    let readers = sources.iter().filter_map(|(source, text)| {
        let tests = start_of_tests(source, text);
        let places = places(text, name);
        let is_built_in = places.iter().any(|one| one.is_built_in && one.at < tests);
        let is_tested = places.iter().any(|one| one.at >= tests);
        (is_built_in || is_tested).then_some(Reader {
            source,
            is_test: !is_built_in,
        })
    });
    readers.collect()
}

/// Where the tests of a source begin: they are the last thing in it, or all of it.
fn start_of_tests(source: &str, text: &str) -> usize {
    if source.contains("/tests/") || source.ends_with("/tests.rs") {
        return 0;
    }
    let mut modules = text.match_indices(TESTS).map(|(at, _)| at);
    // Those in a file of their own are declared anywhere.
    let is_here = |at: &usize| {
        let line = text[at + TESTS.len()..].lines().next();
        line.is_some_and(|name| name.ends_with('{'))
    };
    modules.find(is_here).unwrap_or(text.len())
}

/// What a string has that names the file: its name, with that of its folder where the name is only a word.
fn name(file: &str) -> &str {
    let folder = file.rfind('/').map_or(0, |slash| slash + 1);
    if file[folder..].contains('.') {
        return &file[folder..];
    }
    let above = file[..folder].trim_end_matches('/').rfind('/');
    &file[above.map_or(0, |slash| slash + 1)..]
}

/// Strings without spaces that end with this path.
fn places(text: &str, path: &str) -> Vec<Place> {
    let found = text.match_indices(path).filter_map(|(at, _)| {
        let quote = text[..at].rfind('"')?;
        let folder = &text[quote + 1..at];
        let is_path = (folder.is_empty() || folder.ends_with('/'))
            && !folder.contains(char::is_whitespace)
            && text[at + path.len()..].starts_with('"');
        let before = text[..quote].trim_end();
        is_path.then(|| Place {
            at,
            is_built_in: BUILT_IN.iter().any(|call| before.ends_with(call)),
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_that_is_a_path_reads_and_a_sentence_does_not() {
        let is_read = |text: &str| !places(text, "pods.md").is_empty();
        assert!(is_read(r#"include_str!("../../docs/pods.md")"#));
        assert!(is_read(r#"docs.join("pods.md")"#));
        assert!(!is_read(r#"bail!("see docs/pods.md")"#));
        assert!(!is_read("// docs/pods.md has the table"));
        assert!(!is_read(r#"docs.join("more-pods.md")"#));
        // The second place counts where the first one is a sentence.
        let both = r#"("see docs/pods.md", include_str!("docs/pods.md"))"#;
        assert!(is_read(both) && places(both, "pods.md")[0].is_built_in);
    }

    #[test]
    fn a_name_that_is_only_a_word_needs_its_folder() {
        assert_eq!(name("deploy/image/libvirtd"), "image/libvirtd");
        assert_eq!(name("docs/pods.md"), "pods.md");
        assert_eq!(name("LICENSE"), "LICENSE");
        assert_eq!(name("docs/LICENSE"), "docs/LICENSE");
    }

    #[test]
    fn what_only_tests_read_is_distinguished() {
        let built_in =
            "#[cfg(test)]\nmod other;\ninclude_str!(\n\"x.toml\")\n#[cfg(test)]\nmod tests {\n}";
        let sources = [
            ("a/src/lib.rs", built_in),
            (
                "b/src/lib.rs",
                "#[cfg(test)]\nmod tests {\nread(\"x.toml\") }",
            ),
            ("c/src/x/tests.rs", "read(\"x.toml\")"),
            // A file of the host.
            ("d/src/lib.rs", "read(\"/etc/x.toml\")"),
        ];
        let sources = sources.map(|(file, text)| (file.to_owned(), text.to_owned()));
        let sources = BTreeMap::from(sources);
        let found: Vec<_> = all("deploy/x.toml", &sources)
            .into_iter()
            .map(|reader| (reader.source, reader.is_test))
            .collect();
        let expected = [
            ("a/src/lib.rs", false),
            ("b/src/lib.rs", true),
            ("c/src/x/tests.rs", true),
        ];
        assert_eq!(found, expected);
        assert!(all("deploy/x.rs", &sources).is_empty());
    }
}

//! Every attack in `docs/threat-model.md` names the test that attempts it, and these tests exist.
//!
//! Invariant: a test that is renamed, moved or removed is noticed together with the claim that rests on it.
//! Failure: lines of the page, with the names that no source has.

use std::collections::BTreeSet;
use std::fs;

use crate::sources::sources;
use crate::workspace::root;

const PAGE: &str = "docs/threat-model.md";
/// Where one test calls functions of many files; one that nothing calls is a warning of the compiler.
const OF_API: &str = "/e2e/tests/api/";
/// What a row says that has the test of the row above it.
const REFERENCES: [&str; 3] = ["the same", "as above", "same: "];

/// What the repository has for a claim to rest on.
struct Tests {
    /// Paths of sources.
    files: BTreeSet<String>,
    /// Functions that are tests, or parts of one: a test of the API server has many.
    functions: BTreeSet<String>,
    /// Jobs of a whole run, by `tests/manifest.tsv`.
    jobs: String,
}

impl Tests {
    fn read() -> Self {
        let mut paths = BTreeSet::new();
        sources(&root(), &mut paths);
        let mut files = BTreeSet::new();
        let mut functions = BTreeSet::new();
        for path in paths {
            let text = fs::read_to_string(&path).unwrap();
            let path = path.to_string_lossy().into_owned();
            let counts = |function: &Function| function.is_test || path.contains(OF_API);
            let tests = Function::all(&text).filter(counts);
            functions.extend(tests.map(|function| function.name));
            files.insert(path);
        }
        let jobs = fs::read_to_string(root().join("tests/manifest.tsv")).unwrap();
        Self {
            files,
            functions,
            jobs,
        }
    }

    /// Whether a word in backquotes is a test; `None`: it is another word, such as the name of a crate.
    fn has(&self, name: &str) -> Option<bool> {
        if let Some(path) = name.strip_suffix(".rs") {
            let end = format!("/{path}.rs");
            let mut files = self.files.iter();
            return Some(files.any(|path| path.ends_with(&end)));
        }
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.chars().all(is_word) && name.matches('_').count() > 2 {
            return Some(self.functions.contains(name));
        }
        let (program, module) = name.split_once("::")?;
        let is_program = ["stacks", "api", "clusters"].contains(&program);
        let job = format!("\n{program}::{module}::");
        is_program.then(|| self.jobs.contains(&job))
    }
}

/// A function of a source.
struct Function {
    name: String,
    /// Its attributes say so.
    is_test: bool,
}

impl Function {
    fn all(text: &str) -> impl Iterator<Item = Self> {
        let mut is_test = false;
        text.lines().filter_map(move |line| {
            let line = line.trim();
            if line.is_empty() {
                is_test = false;
            } else if line.starts_with("#[") && line.contains("test") {
                is_test = true;
            }
            let start = line.find("fn ")? + 3;
            let name = line[start..].split(['(', '<']).next()?.to_owned();
            let is_test = std::mem::take(&mut is_test);
            Some(Self { name, is_test })
        })
    }
}

/// The words in backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn every_claim_of_the_threat_model_names_tests_that_exist() {
    let tests = Tests::read();
    assert!(tests.functions.len() > 1_000, "tests are not found");
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let mut claims = 0;
    let mut wrong = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        let Some(row) = line.strip_prefix("| ") else {
            continue;
        };
        let cells: Vec<_> = row.trim_end_matches(" |").split(" | ").collect();
        if ["attack", "---"].contains(&cells[0]) {
            continue;
        }
        claims += 1;
        let [_, _, evidence] = cells[..] else {
            wrong.push(format!("{PAGE}:{number} has {} cells", cells.len()));
            continue;
        };
        let known: Vec<_> = quoted(evidence)
            .filter_map(|name| Some((name, tests.has(name)?)))
            .collect();
        let absent = known.iter().filter(|(_, exists)| !exists);
        wrong.extend(absent.map(|(name, _)| format!("{PAGE}:{number} names {name}")));
        if known.is_empty() && !REFERENCES.iter().any(|words| evidence.contains(words)) {
            wrong.push(format!("{PAGE}:{number} names no test"));
        }
    }
    assert!(claims > 100, "only {claims} claims are found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_claim_without_its_test_is_found() {
    let text = "#[tokio::test(start_paused = true)]\n#[case(1)]\nasync fn it_is_so_and_no_other() {\n\
                fn it_is_a_mere_function() {\n\n#[rstest]\nfn it_has_cases_of_all_kinds<T>(";
    let tests = Function::all(text).filter(|function| function.is_test);
    let functions: BTreeSet<_> = tests.map(|function| function.name).collect();
    let expected = ["it_has_cases_of_all_kinds", "it_is_so_and_no_other"];
    assert!(functions.iter().eq(expected), "{functions:?}");
    let tests = Tests {
        files: BTreeSet::from(["/x/images/tests/a.rs".to_owned()]),
        functions,
        jobs: "# x\nstacks::exec::words\t1\n".to_owned(),
    };
    for (name, expected) in [
        ("it_is_so_and_no_other", Some(true)),
        ("it_is_a_mere_function", Some(false)),
        ("images/tests/a.rs", Some(true)),
        ("images/tests/b.rs", Some(false)),
        ("stacks::exec", Some(true)),
        ("stacks::other", Some(false)),
        ("real::handoff", None),
        ("vmlet-agent", None),
    ] {
        assert_eq!(tests.has(name), expected, "{name}");
    }
    assert!(quoted("x, `a.rs`: `b`").eq(["a.rs", "b"]));
}

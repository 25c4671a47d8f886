//! The costs of jobs, from `tests/e2e/weights.tsv`.
//!
//! Invariant: every job has a weight: that of the longest row with which its name begins, or
//! [`COMMON`]. Only that row says whether the job belongs to the long form alone.
//! Failure: a row that cannot be parsed, or that no test has the name of, is an error that names it.

use anyhow::{Context, Result, bail, ensure};

/// Marks a job beside which nothing may run.
const ALONE: &str = "alone";
/// Marks a job of the long form.
const LONG_FORM: &str = "long";
const MARKS: [&str; 2] = [ALONE, LONG_FORM];

/// What a job takes from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weight {
    /// How long it takes on an idle machine.
    pub(super) seconds: u64,
    /// Of one processor, on average.
    pub(super) percent: u64,
    /// At its peak.
    pub(super) memory_mib: u64,
    /// Whether nothing may run beside it.
    pub(super) alone: bool,
}

/// The weight of a job without a row: most programs with tests of one crate.
pub(super) const COMMON: Weight = Weight {
    seconds: 60,
    percent: 70,
    memory_mib: 512,
    alone: false,
};

/// The table.
#[derive(Debug, Default)]
pub(super) struct Weights(Vec<Row>);

/// What the table says of the jobs whose names begin with `name`.
#[derive(Debug)]
struct Row {
    name: String,
    weight: Weight,
    /// Whether they run only in the long form, or when they are named.
    is_long_form: bool,
}

impl Weights {
    /// Reads the table.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let lines = text
            .lines()
            .filter(|l| !l.is_empty() && !l.starts_with('#'));
        let rows = lines.map(|line| row(line).with_context(|| format!("weights.tsv: {line:?}")));
        Ok(Self(rows.collect::<Result<_>>()?))
    }

    /// The weight of a job.
    pub(super) fn for_job(&self, job: &str) -> Weight {
        self.row(job).map_or(COMMON, |row| row.weight)
    }

    /// Whether the job runs only in the long form of the suite, or when it is named.
    pub(super) fn is_long_form(&self, job: &str) -> bool {
        self.row(job).is_some_and(|row| row.is_long_form)
    }

    fn row(&self, job: &str) -> Option<&Row> {
        let rows = self.0.iter().filter(|row| begins_with(job, &row.name));
        rows.max_by_key(|row| row.name.len())
    }

    /// An error unless each row is of some job.
    pub(super) fn check<'a>(&self, jobs: &(impl Iterator<Item = &'a str> + Clone)) -> Result<()> {
        for Row { name, .. } in &self.0 {
            ensure!(
                jobs.clone().any(|job| begins_with(job, name)),
                "weights.tsv: no test is called {name}: remove the row, or correct its name"
            );
        }
        Ok(())
    }
}

/// Whole segments only: `api::agent` is no beginning of `api::agent_facts::x`.
pub(super) fn begins_with(job: &str, name: &str) -> bool {
    let rest = job.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// How many fields every row has: name, seconds, percent, MiB.
const FIELDS: usize = 4;

fn row(line: &str) -> Result<Row> {
    let mut fields: Vec<_> = line.split('\t').collect();
    let marks = fields.split_off(FIELDS.min(fields.len()));
    let [name, numbers @ ..] = fields.as_slice() else {
        bail!("the row is empty");
    };
    ensure!(
        numbers.len() + 1 == FIELDS && marks.iter().all(|mark| MARKS.contains(mark)),
        "expected name, seconds, percent, MiB and perhaps {}, with tabs between",
        MARKS.join(" or ")
    );
    let number = |index: usize| {
        let number: u64 = numbers[index].parse().context("a whole number")?;
        ensure!(number > 0, "0 costs nothing");
        Ok(number)
    };
    let weight = Weight {
        seconds: number(0)?,
        percent: number(1)?,
        memory_mib: number(2)?,
        alone: marks.contains(&ALONE),
    };
    Ok(Row {
        name: (*name).to_owned(),
        weight,
        is_long_form: marks.contains(&LONG_FORM),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_row_counts_and_names_are_whole() {
        let table =
            "# x\napi\t1\t50\t9\napi::agent\t2\t50\t9\napi::agent::kill\t3\t50\t9\talone\tlong\n";
        let weights = Weights::parse(table).unwrap();
        let seconds = |job: &str| weights.for_job(job).seconds;
        assert_eq!(seconds("api::rules::a"), 1);
        assert_eq!(seconds("api::agent_facts::a"), 1);
        assert_eq!(seconds("api::agent::b"), 2);
        assert_eq!(seconds("api::agent::kill"), 3);
        assert!(weights.for_job("api::agent::kill").alone);
        assert!(weights.is_long_form("api::agent::kill"));
        assert!(!weights.is_long_form("api::agent::b"));
        assert_eq!(weights.for_job("stacks::exec::a"), COMMON);
    }

    #[test]
    fn a_bad_row_and_a_row_of_no_test_are_errors() {
        for bad in [
            "api\t1\t50",
            "api\t1\tx\t9",
            "api\t0\t5\t9",
            "api\t1\t5\t9\tquiet",
        ] {
            let text = format!("{:#}", Weights::parse(bad).unwrap_err());
            assert!(text.contains("weights.tsv"), "{text}");
        }
        let weights = Weights::parse("api::gone\t1\t5\t9").unwrap();
        assert!(weights.check(&["api::gone_too::x"].into_iter()).is_err());
        assert!(weights.check(&["api::gone::x"].into_iter()).is_ok());
    }

    /// The names of the real table in the sources, which are there before the tests are built.
    #[test]
    fn each_row_of_the_table_names_a_module_or_a_test() {
        let root = crate::workspace::root();
        let table = std::fs::read_to_string(root.join("tests/e2e/weights.tsv")).unwrap();
        let mut folders = vec![root.join("tests/e2e/tests")];
        let mut sources = String::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    sources += &std::fs::read_to_string(path).unwrap();
                }
            }
        }
        let programs = ["stacks", "api", "clusters"];
        for Row { name, .. } in Weights::parse(&table).unwrap().0 {
            let Some((program, tests)) = name.split_once("::") else {
                continue;
            };
            // The others are programs of single crates.
            if !programs.contains(&program) {
                continue;
            }
            let last = tests.rsplit("::").next().unwrap();
            let declared = [format!("mod {last};"), format!("fn {last}(")];
            assert!(declared.iter().any(|d| sources.contains(d)), "{name}");
        }
    }
}

//! Tables of the API server's expected responses to objects.
//!
//! Invariant: every case of a table is tried, and nothing of it stays.
//! Failure: all cases that had another result, each with what was said.

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use crate::objects::{Answer, Effect, Objects};

/// One object or edit, and the text that a refusal must have.
#[derive(Debug, Clone)]
pub struct Case {
    what: String,
    kind: &'static str,
    name: Option<String>,
    before: Option<Value>,
    status: Option<Value>,
    change: Value,
    refusal: Option<String>,
}

impl Case {
    /// An object that is created; `spec` is its spec.
    pub fn create(kind: &'static str, spec: Value) -> Self {
        Self {
            what: format!("create {kind} {spec}"),
            kind,
            name: None,
            before: None,
            status: None,
            change: spec,
            refusal: None,
        }
    }

    /// An edit: `change` is merged into the spec of an object that was created with `before`.
    pub fn edit(kind: &'static str, before: Value, change: Value) -> Self {
        Self {
            what: format!("edit {kind} {before} by {change}"),
            kind,
            name: None,
            before: Some(before),
            status: None,
            change,
            refusal: None,
        }
    }

    /// With this name, in place of one of the table.
    #[must_use]
    pub fn named(mut self, name: String) -> Self {
        self.name = Some(name);
        self
    }

    /// The status that the object has before the edit.
    #[must_use]
    pub fn with_status(mut self, status: Value) -> Self {
        self.status = Some(status);
        self
    }

    /// The API server must refuse it with this text.
    #[must_use]
    pub fn refused(mut self, words: &str) -> Self {
        self.refusal = Some(words.to_owned());
        self
    }

    async fn answer(&self, objects: &Objects, name: &str) -> Result<Answer> {
        let object = |spec: &Value| json!({ "metadata": { "name": name }, "spec": spec });
        let Some(before) = &self.before else {
            let object = object(&self.change);
            return objects.create(self.kind, &object, Effect::DryRun).await;
        };
        if let Err(words) = objects
            .create(self.kind, &object(before), Effect::Real)
            .await?
        {
            return Ok(Err(format!("not even created: {words}")));
        }
        if let Some(status) = &self.status {
            let name = format!("{name}/status");
            let patch = json!({ "status": status });
            let answer = objects
                .patch(self.kind, &name, &patch, Effect::Real)
                .await?;
            answer.map_err(|words| anyhow!("{}: its status: {words}", self.what))?;
        }
        let patch = json!({ "spec": self.change });
        let answer = objects
            .patch(self.kind, name, &patch, Effect::DryRun)
            .await?;
        objects
            .delete(self.kind, name)
            .await?
            .map_err(|words| anyhow!("{}: delete: {words}", self.what))?;
        Ok(answer)
    }
}

/// Tries all of them.
pub async fn judge(objects: &Objects, cases: &[Case]) -> Result<()> {
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let name = case.name.clone();
        let name = name.unwrap_or_else(|| format!("case-{number}"));
        let answer = case.answer(objects, &name).await?;
        let trouble = match (&case.refusal, answer) {
            (None, Ok(_)) => continue,
            (Some(words), Err(reported)) if reported.contains(words.as_str()) => continue,
            (None, Err(reported)) => format!("refused: {reported}"),
            (Some(words), Err(reported)) => format!("refused without \"{words}\": {reported}"),
            (Some(words), Ok(_)) => format!("taken, instead of \"{words}\""),
        };
        wrong.push(format!("{}\n    {trouble}", case.what));
    }
    ensure!(
        wrong.is_empty(),
        "{} of {} cases went otherwise:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
    Ok(())
}

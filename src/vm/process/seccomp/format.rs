//! Profiles in the format of the OCI runtime specification, `linux.seccomp`.
//!
//! Invariant: a field that would be without effect is refused, among them the conditions that only
//! Docker's own profiles have.
//! Failure: a sentence.

use bytes::Bytes;
use libseccomp::{ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp};
use serde::Deserialize;

use super::{EPERM, Rules};

/// A profile.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Profile {
    default_action: String,
    default_errno_ret: Option<i32>,
    #[serde(default)]
    architectures: Vec<String>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    syscalls: Vec<Syscalls>,
}

/// Calls that have one action.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Syscalls {
    names: Vec<String>,
    action: String,
    errno_ret: Option<i32>,
    #[serde(default)]
    args: Vec<Argument>,
    /// For people.
    #[serde(default, rename = "comment")]
    _comment: String,
}

/// A condition.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Argument {
    index: u32,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// The filter of a profile.
pub(super) fn filter(profile: &Profile) -> Result<Bytes, String> {
    if let Some(flag) = profile.flags.first() {
        return Err(format!("the flag {flag} is not available in a guest"));
    }
    let default = action(&profile.default_action, profile.default_errno_ret)?;
    let mut rules = Rules::new(default)?;
    for name in &profile.architectures {
        let arch: ScmpArch = name
            .parse()
            .map_err(|_| format!("no architecture is {name}"))?;
        rules.add_arch(arch)?;
    }
    for calls in &profile.syscalls {
        let action = action(&calls.action, calls.errno_ret)?;
        let conditions = calls.args.iter().map(condition);
        let conditions: Vec<_> = conditions.collect::<Result<_, _>>()?;
        for name in &calls.names {
            for together in groups(&calls.args, &conditions) {
                rules.add(name, action, together)?;
            }
        }
    }
    rules.compile()
}

/// All conditions together; several on one argument one by one, of which any is enough: libseccomp takes one of
/// each argument, and runc does the same.
fn groups<'a>(
    arguments: &[Argument],
    conditions: &'a [ScmpArgCompare],
) -> Vec<&'a [ScmpArgCompare]> {
    let mut indices: Vec<_> = arguments.iter().map(|argument| argument.index).collect();
    indices.sort_unstable();
    indices.dedup();
    if indices.len() == conditions.len() {
        vec![conditions]
    } else {
        conditions.chunks(1).collect()
    }
}

fn action(name: &str, errno: Option<i32>) -> Result<ScmpAction, String> {
    match name {
        // It needs a program of the node that gets the calls.
        "SCMP_ACT_NOTIFY" => Err("the action SCMP_ACT_NOTIFY is not available in a guest".into()),
        name => {
            let action = ScmpAction::from_str(name, Some(errno.unwrap_or(EPERM)));
            action.map_err(|_| format!("no action is {name}"))
        }
    }
}

fn condition(argument: &Argument) -> Result<ScmpArgCompare, String> {
    let Argument {
        index,
        value,
        value_two,
        op,
    } = argument;
    if *index > 5 {
        return Err(format!("no system call has an argument {index}"));
    }
    // The first value is the mask there.
    let (op, value) = match op.as_str() {
        "SCMP_CMP_MASKED_EQ" => (ScmpCompareOp::MaskedEqual(*value), *value_two),
        op => (
            op.parse().map_err(|_| format!("no comparison is {op}"))?,
            *value,
        ),
    };
    Ok(ScmpArgCompare::new(*index, op, value))
}

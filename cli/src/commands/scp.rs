//! `scp`: copies files between this computer and the guest of a virtual machine, with the scp of this computer.
//!
//! Invariant: one machine takes part, on one side; the other files are on this computer. What a path says is for scp
//! and the guest.
//! Failure: files that name no machine, or two, and a machine that does not run, are refused before anything is
//! copied.

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, ValueHint};

use super::openssh::{Guest, Login, become_program, login};
use crate::cluster::ClusterArgs;
use crate::cluster::reach::without_kind;

/// Files to copy.
#[derive(Debug, Args)]
pub(crate) struct ScpArgs {
    /// Files to copy, and where to; those of the guest as [USER@]NAME:PATH.
    #[arg(value_name = "[[USER@]NAME:]PATH", required = true, num_args = 2.., value_hint = ValueHint::AnyPath)]
    files: Vec<String>,
    /// Copy directories with all that is in them.
    #[arg(short, long)]
    recursive: bool,
    /// Keep times and modes of files.
    #[arg(short, long)]
    preserve: bool,
    /// An option for scp that has precedence over those with which it reaches the machine, such as
    /// --local-ssh-opts=-O; may be repeated.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    local_ssh_opts: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &ScpArgs) -> anyhow::Result<ExitCode> {
    let name = machine(&args.files)?;
    let guest = Guest::new(&args.cluster, name).await?;
    guest.ensure_runs()?;
    Err(become_program("scp", &arguments(args, &guest)))
}

/// A file as the user names it.
#[derive(Debug, PartialEq, Eq)]
enum File<'a> {
    Here(&'a str),
    There(Login<'a>, &'a str),
}

impl File<'_> {
    /// A colon behind a slash is part of a path, as for scp; but a kind may stand before a name.
    fn parse(text: &str) -> File<'_> {
        let here = File::Here(text);
        let Some((place, path)) = text.split_once(':') else {
            return here;
        };
        let login = login(place);
        let user = login.user;
        let name = without_kind(login.name);
        let has_slash = name.contains('/') || user.is_some_and(|user| user.contains('/'));
        if place.is_empty() || has_slash {
            return here;
        }
        File::There(Login { user, name }, path)
    }
}

/// The machine that takes part.
fn machine(files: &[String]) -> anyhow::Result<&str> {
    let files: Vec<_> = files.iter().map(|text| File::parse(text)).collect();
    let Some((target, sources)) = files.split_last() else {
        bail!("a file to copy and a place are needed");
    };
    let is_there = |file: &File<'_>| matches!(file, File::There(..));
    let mut names = files.iter().filter_map(|file| match file {
        File::There(login, _) => Some(login.name),
        File::Here(_) => None,
    });
    let Some(name) = names.next() else {
        bail!("none of these files is on a machine: name those of a guest as [USER@]NAME:PATH");
    };
    if let Some(other) = names.find(|other| *other != name) {
        bail!(
            "files of {name} and {other} cannot be copied at once: copy to this computer first, and from here to the other one"
        );
    }
    if is_there(target) && sources.iter().any(is_there) {
        bail!("source and target are on {name}: `vmletctl ssh {name} cp …` copies there");
    }
    if !is_there(target) && !sources.iter().all(is_there) {
        bail!(
            "some of the sources and the target are on this computer: name them in commands of their own"
        );
    }
    Ok(name)
}

/// The arguments of scp, for which the first one of two that contradict each other counts.
fn arguments(args: &ScpArgs, guest: &Guest) -> Vec<String> {
    let mut arguments = args.local_ssh_opts.clone();
    arguments.extend(guest.options());
    arguments.extend(args.recursive.then(|| "-r".to_owned()));
    arguments.extend(args.preserve.then(|| "-p".to_owned()));
    arguments.push("--".to_owned());
    arguments.extend(args.files.iter().map(|text| match File::parse(text) {
        File::Here(path) => path.to_owned(),
        File::There(login, path) => format!("{}:{path}", guest.target(login.user)),
    }));
    arguments
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ScpArgs,
    }

    fn given(line: &str) -> anyhow::Result<String> {
        let args = Line::try_parse_from(line.split(' ')).unwrap().args;
        let guest = Guest::for_tests(machine(&args.files)?);
        let ours = guest.options().join(" ");
        Ok(arguments(&args, &guest).join(" ").replace(&ours, "OURS"))
    }

    #[test]
    fn files_are_copied_both_ways() {
        let given = |line: &str| given(line).unwrap();
        assert_eq!(given("scp a web:/tmp"), "OURS -- a web.team.vmlet:/tmp");
        assert_eq!(
            given("scp -r root@web:a root@web:b ./x:y/"),
            "OURS -r -- root@web.team.vmlet:a root@web.team.vmlet:b ./x:y/"
        );
        assert_eq!(given("scp -p vm/web: ."), "OURS -p -- web.team.vmlet: .");
        for place in ["root@vm/web", "root@pods/web", "root@vmis/web", "root@web"] {
            let line = format!("scp root@web:a {place}:b .");
            let copied = "OURS -- root@web.team.vmlet:a root@web.team.vmlet:b .";
            assert_eq!(given(&line), copied);
        }
        assert_eq!(
            given("scp --local-ssh-opts=-O -n team a web:b"),
            "-O OURS -- a web.team.vmlet:b"
        );
    }

    #[test]
    fn one_machine_takes_part_on_one_side() {
        let words = |line| given(line).unwrap_err().to_string();
        for line in [
            "scp a b",
            "scp a vm/root@web:/b",
            "scp a ./x@web:/b",
            "scp a node/web:/b",
        ] {
            assert!(words(line).contains("[USER@]NAME:PATH"), "{line}");
        }
        assert!(words("scp web:a db:b").contains("at once"));
        assert!(words("scp web:a web:b").contains("vmletctl ssh web"));
        assert!(words("scp a web:b c").contains("commands of their own"));
        assert!(Line::try_parse_from(["scp", "a"]).is_err());
    }
}

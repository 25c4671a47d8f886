//! The command line of a machine that runs, for running it again without libvirt and without us.
//!
//! Invariant: only what cannot be the same is changed. Descriptors that libvirt passed become paths
//! in a scratch directory, disk and secret become copies there, the tap becomes QEMU's user
//! network, and the CPUs run at once instead of at a command of the monitor.
//! Failure: an argument that is not as expected is named; nothing is run then.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use e2e::bench::text;

/// A machine to run by hand.
#[derive(Debug)]
pub(crate) struct Recipe {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    uid: u32,
    gid: u32,
    /// Where its serial port is logged.
    pub(crate) console: PathBuf,
}

impl Recipe {
    /// Reads the machine that runs as process `pid`. Its files, as they were before the first start,
    /// are expected in `scratch`; the machine has them in the directories `from`.
    pub(crate) fn read(pid: i32, from: &[&Path], scratch: &Path) -> Result<Self> {
        let command_line = strings(pid, "cmdline")?;
        let secret = command_line.iter().find_map(|a| secret_file(a));
        let secret = secret.context("no argument names the secret's file")?;
        let domain = secret.parent().context("the secret has no directory")?;
        let copy = scratch.join("master-key.aes");
        // libvirtd and its QEMUs may live in a mount namespace of their own.
        let seen = format!("/proc/{pid}/root{}", secret.display());
        std::fs::copy(&seen, &copy).with_context(|| format!("copy {seen}"))?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let uid = number(&status, "Uid:")?;
        let gid = number(&status, "Gid:")?;
        let files = std::fs::read_dir(scratch)?.flatten();
        let files = files.map(|file| file.path());
        for path in files.chain([scratch.to_owned()]) {
            chown(&path, Some(uid), Some(gid))
                .with_context(|| format!("give {} to QEMU's user", path.display()))?;
        }

        let scratch = text(scratch)?;
        let from = from.iter().copied().chain([domain]).map(text);
        let from: Vec<_> = from.collect::<Result<_>>()?;
        let moved = |word: &str| {
            let word = word.to_owned();
            from.iter()
                .fold(word, |word, from| word.replace(from, scratch))
        };
        let words: Vec<String> = command_line.iter().map(|word| moved(word)).collect();
        let (program, words) = words.split_first().context("an empty command line")?;
        let environment = strings(pid, "environ")?;
        let environment = environment.iter().filter_map(|v| v.split_once('='));
        Ok(Self {
            program: program.clone(),
            arguments: arguments(words, scratch)?,
            environment: environment.map(|(k, v)| (k.to_owned(), moved(v))).collect(),
            uid,
            gid,
            console: Path::new(scratch).join(CONSOLE),
        })
    }

    /// The same with QEMU's own limit of translated code.
    pub(crate) fn with_default_cache(mut self) -> Self {
        for word in &mut self.arguments {
            let settings = word.split(',');
            let kept: Vec<_> = settings
                .filter(|part| !part.starts_with("tb-size="))
                .collect();
            *word = kept.join(",");
        }
        self
    }

    /// Starts it, with what QEMU reports in `messages`.
    pub(crate) fn spawn(&self, messages: &Path) -> Result<Child> {
        let mut qemu = Command::new(&self.program);
        qemu.args(&self.arguments).env_clear().current_dir("/");
        qemu.envs(self.environment.iter().map(|(k, v)| (k, v)));
        qemu.uid(self.uid).gid(self.gid).stdin(Stdio::null());
        let messages = std::fs::File::create(messages)?;
        qemu.stdout(messages.try_clone()?).stderr(messages);
        qemu.spawn()
            .with_context(|| format!("run {}", self.program))
    }
}

const CONSOLE: &str = "console.raw";

/// The words of `words` with everything that libvirt passed as a descriptor replaced.
fn arguments(words: &[String], scratch: &str) -> Result<Vec<String>> {
    let mut arguments = Vec::new();
    let mut words = words.iter();
    while let Some(option) = words.next() {
        if option == "-S" {
            continue;
        }
        arguments.push(option.clone());
        if !takes_value(option) {
            continue;
        }
        let value = words
            .next()
            .with_context(|| format!("{option} at the end"))?;
        match option.as_str() {
            "-add-fd" => drop(arguments.pop()),
            "-chardev" => arguments.push(chardev(value, scratch)?),
            "-netdev" => arguments.push(netdev(value)?),
            _ => arguments.push(value.clone()),
        }
    }
    Ok(arguments)
}

/// All other options that libvirt writes take one.
fn takes_value(option: &str) -> bool {
    !matches!(option, "-no-user-config" | "-nodefaults" | "-no-shutdown")
}

/// Sockets get a path, and the serial port, which has standard input and output, a file.
fn chardev(value: &str, scratch: &str) -> Result<String> {
    let id = setting(value, "id")?;
    if value.starts_with("stdio,") {
        return Ok(format!("file,id={id},path={scratch}/{CONSOLE},append=on"));
    }
    let change = |part: &str| match part.split_once('=') {
        Some(("fd", _)) => format!("path={scratch}/{id}.sock"),
        _ => part.to_owned(),
    };
    Ok(value.split(',').map(change).collect::<Vec<_>>().join(","))
}

fn netdev(value: &str) -> Result<String> {
    Ok(format!("user,id={}", setting(value, "id")?))
}

fn setting<'a>(value: &'a str, name: &str) -> Result<&'a str> {
    let found = value.split(',').filter_map(|part| part.split_once('='));
    let mut found = found.filter(|(key, _)| *key == name);
    let (_, text) = found
        .next()
        .with_context(|| format!("no {name} in {value}"))?;
    Ok(text)
}

/// The file of a QEMU secret object, if `argument` describes one.
fn secret_file(argument: &str) -> Option<PathBuf> {
    let object: serde_json::Value = serde_json::from_str(argument).ok()?;
    (object.get("qom-type")? == "secret").then_some(())?;
    Some(object.get("file")?.as_str()?.into())
}

/// Texts that end in NUL.
fn strings(pid: i32, file: &str) -> Result<Vec<String>> {
    let bytes = std::fs::read(format!("/proc/{pid}/{file}"))?;
    let texts = String::from_utf8(bytes).context("not UTF-8")?;
    let texts = texts.split_terminator('\0');
    Ok(texts.map(ToOwned::to_owned).collect())
}

fn number(status: &str, name: &str) -> Result<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let first = line.and_then(|line| line.split_whitespace().next());
    Ok(first.with_context(|| format!("no {name}"))?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_libvirt_passes_by_descriptor_is_replaced() {
        let given = [
            "-S",
            "-nodefaults",
            "-m",
            "128",
            "-add-fd",
            "set=0,fd=28,opaque=serial0-log",
            "-chardev",
            "stdio,id=charserial0,signal=off",
            "-chardev",
            "socket,id=charchannel0,fd=27,server=on,wait=off",
            "-netdev",
            "tap,id=vmlet0,fd=4,vhost=off",
        ];
        let given = given.map(ToOwned::to_owned);
        let expected = [
            "-nodefaults",
            "-m",
            "128",
            "-chardev",
            "file,id=charserial0,path=/s/console.raw,append=on",
            "-chardev",
            "socket,id=charchannel0,path=/s/charchannel0.sock,server=on,wait=off",
            "-netdev",
            "user,id=vmlet0",
        ];
        assert_eq!(arguments(&given, "/s").unwrap(), expected);
        assert!(arguments(&["-m".to_owned()], "/s").is_err());
    }

    #[test]
    fn the_secret_is_distinguished_from_other_objects() {
        let secret = r#"{"qom-type":"secret","id":"masterKey0","file":"/d/master-key.aes"}"#;
        assert_eq!(secret_file(secret), Some("/d/master-key.aes".into()));
        assert_eq!(
            secret_file(r#"{"qom-type":"rng-random","file":"/x"}"#),
            None
        );
        assert_eq!(secret_file("-S"), None);
    }
}

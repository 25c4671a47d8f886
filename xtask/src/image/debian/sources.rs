//! Where the packages come from: the mirrors of this machine, if it has the release itself.
//!
//! Invariant: only repositories of the release and their component `main`.
//! Failure: apt's own message.

use anyhow::Result;

use crate::run;

/// The repositories of a machine that has others.
const USUAL: [(&str, &str); 3] = [
    ("http://deb.debian.org/debian", ""),
    ("http://deb.debian.org/debian", "-updates"),
    ("http://deb.debian.org/debian-security", "-security"),
];

/// The lines of a `sources.list` for the release, whatever this machine has.
pub(super) fn lines(release: &str) -> Result<String> {
    let mut apt = run::command("apt-get");
    apt.args(["indextargets", "--format"]);
    apt.arg("$(ORIGIN) $(CODENAME) $(COMPONENT) $(REPO_URI)");
    let own = mirrors(release, &run::output(apt.arg("Created-By: Packages"))?);
    if !own.is_empty() {
        return Ok(own);
    }
    let usual = USUAL.map(|(uri, suffix)| format!("deb {uri} {release}{suffix} main\n"));
    Ok(usual.concat())
}

/// The lines for those of apt's targets that belong to the release.
fn mirrors(release: &str, targets: &str) -> String {
    let suites = USUAL.map(|(_, suffix)| format!("{release}{suffix}"));
    let mut lines: Vec<String> = targets
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ["Debian", suite, "main", uri] = words[..] else {
                return None;
            };
            let known = suites.iter().any(|known| known == suite);
            known.then(|| format!("deb {uri} {suite} main\n"))
        })
        .collect();
    lines.sort();
    lines.dedup();
    // Updates without the release itself install nothing.
    let release = format!(" {release} main\n");
    if lines.iter().any(|line| line.ends_with(&release)) {
        lines.concat()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_repositories_of_the_release_count() {
        let targets = "Debian bookworm main http://mirror/debian/\n\
                       Debian bookworm main http://mirror/debian/\n\
                       Debian bookworm-security main http://mirror/security/\n\
                       Debian bookworm-backports main http://mirror/debian/\n\
                       Debian bookworm contrib http://mirror/debian/\n\
                       Others bookworm main http://others/\n";
        assert_eq!(
            mirrors("bookworm", targets),
            "deb http://mirror/debian/ bookworm main\n\
             deb http://mirror/security/ bookworm-security main\n"
        );
        assert_eq!(mirrors("trixie", targets), "");
    }

    #[test]
    fn a_machine_of_another_release_has_no_mirror() {
        let other = "Ubuntu noble main http://mirror/ubuntu/\n";
        assert_eq!(mirrors("bookworm", other), "");
        assert_eq!(
            mirrors(
                "bookworm",
                "Debian bookworm-security main http://mirror/security/\n"
            ),
            ""
        );
    }
}

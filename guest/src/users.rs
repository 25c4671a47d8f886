//! The users of the guest, from its own files.
//!
//! Invariant: only `/etc/passwd` and `/etc/group` count: a static program has no other source of
//! users.
//! Failure: [`Unknown`] for a name that is not there; a number needs no entry.

use std::fs;
use std::path::Path;

use guestapi::User;

/// Who a process runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// All groups beside the primary one.
    pub(crate) groups: Vec<u32>,
    pub(crate) home: String,
    pub(crate) shell: String,
}

/// A name that no user of the guest has.
#[derive(Debug, thiserror::Error)]
#[error("the guest has no user {0:?}")]
pub(crate) struct Unknown(String);

/// The account of a user, or that of root; `etc` is the folder of the files.
pub(crate) fn account(etc: &Path, user: Option<&User>) -> Result<Account, Unknown> {
    let root = User {
        gid: Some(0),
        ..User::default()
    };
    let user = user.unwrap_or(&root);
    let entry = entry(&read(etc, "passwd"), user);
    let mut account = match entry {
        Some(entry) => entry,
        None if user.name.is_empty() => Account {
            name: match user.uid {
                0 => "root".to_owned(),
                uid => uid.to_string(),
            },
            uid: user.uid,
            gid: 0,
            groups: Vec::new(),
            home: String::new(),
            shell: String::new(),
        },
        None => return Err(Unknown(user.name.clone())),
    };
    account.groups = groups(&read(etc, "group"), &account.name);
    account.groups.extend(&user.groups);
    if let Some(gid) = user.gid {
        account.gid = gid;
    }
    account.groups.sort_unstable();
    account.groups.dedup();
    Ok(account)
}

fn read(etc: &Path, file: &str) -> String {
    let bytes = fs::read(etc.join(file)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `NAME:PASSWORD:UID:GID:COMMENT:HOME:SHELL`
fn entry(passwd: &str, user: &User) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        let [name, _, uid, gid, _, home, shell] = fields[..] else {
            return None;
        };
        let uid = uid.parse().ok()?;
        let gid = gid.parse().ok()?;
        let is_requested = match user.name.as_str() {
            "" => uid == user.uid,
            requested => name == requested,
        };
        is_requested.then(|| Account {
            name: name.to_owned(),
            uid,
            gid,
            groups: Vec::new(),
            home: home.to_owned(),
            shell: shell.to_owned(),
        })
    })
}

/// `NAME:PASSWORD:GID:MEMBER,MEMBER`
fn groups(group: &str, user: &str) -> Vec<u32> {
    let of_line = |line: &str| {
        let fields: Vec<_> = line.split(':').collect();
        let [_, _, gid, members] = fields[..] else {
            return None;
        };
        let is_member = members.split(',').any(|member| member == user);
        gid.parse().ok().filter(|_| is_member)
    };
    group.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_those_of_the_files_or_numbers() {
        let etc = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(etc.path().join(name), text).unwrap();
        let read = |user: Option<User>| account(etc.path(), user.as_ref());
        let number = |uid| User {
            uid,
            ..User::default()
        };
        let nothing = read(None).unwrap();
        assert_eq!(
            (nothing.uid, nothing.gid, nothing.name.as_str()),
            (0, 0, "root")
        );
        write(
            "passwd",
            "root:x:0:0:root:/root:/bin/bash\nodd\nweb:x:33:34:,,,:/srv:/bin/sh\n",
        );
        write(
            "group",
            "web:x:34:\nadm:x:4:syslog,web\nlog:x:5:web\nx:x:no:web\n",
        );
        let named = User {
            name: "web".to_owned(),
            groups: vec![100, 5],
            ..User::default()
        };
        let web = read(Some(named.clone())).unwrap();
        assert_eq!((web.uid, web.gid, web.home.as_str()), (33, 34, "/srv"));
        assert_eq!(web.groups, [4, 5, 100]);
        assert_eq!(read(Some(number(33))).unwrap().name, "web");
        let other_group = User {
            gid: Some(7),
            ..named
        };
        assert_eq!(read(Some(other_group)).unwrap().gid, 7);
        let free = read(Some(number(4000))).unwrap();
        assert_eq!((free.uid, free.gid, free.home.as_str()), (4000, 0, ""));
        let missing = User {
            name: "no-such-user".to_owned(),
            ..User::default()
        };
        assert!(read(Some(missing)).is_err());
    }
}

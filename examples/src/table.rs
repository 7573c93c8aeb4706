//! A table that several processes may share.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Texts by key. It stands for the database of a service.
///
/// It excludes no callers: two of them can read a row, and then both write it. Only the lock prevents
/// that.
#[derive(Debug)]
pub enum Table {
    /// The rows are in this process.
    Memory(Mutex<BTreeMap<String, String>>),
    /// The rows are files in a folder.
    Folder(PathBuf),
}

impl Table {
    /// Opens the table in the folder that follows `option` on the command line. Without the option, the
    /// table is in memory.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder cannot be created.
    pub fn open(option: &str) -> Result<Self> {
        match crate::option::<PathBuf>(option) {
            Ok(Some(folder)) => {
                fs::create_dir_all(&folder)?;
                Ok(Self::Folder(folder))
            }
            Ok(None) => Ok(Self::Memory(Mutex::default())),
            Err(error) => Err(Error::new(ErrorKind::InvalidInput, error)),
        }
    }

    /// Returns the row with this key.
    ///
    /// # Errors
    ///
    /// Returns an error if the row cannot be read.
    pub fn get(&self, key: &str) -> Result<Option<String>> {
        match self {
            Self::Memory(rows) => Ok(lock(rows).get(key).cloned()),
            Self::Folder(folder) => match fs::read_to_string(folder.join(file_name(key))) {
                Ok(row) => Ok(Some(row)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            },
        }
    }

    /// Writes the row with this key. A reader sees the whole row or none.
    ///
    /// # Errors
    ///
    /// Returns an error if the row cannot be written.
    pub fn put(&self, key: &str, row: &str) -> Result<()> {
        match self {
            Self::Memory(rows) => {
                lock(rows).insert(key.to_owned(), row.to_owned());
                Ok(())
            }
            Self::Folder(folder) => {
                let new = folder.join(format!("{}.{}", file_name(key), std::process::id()));
                fs::write(&new, row)?;
                fs::rename(new, folder.join(file_name(key)))
            }
        }
    }

    /// Removes the row with this key, if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the row cannot be removed.
    pub fn remove(&self, key: &str) -> Result<()> {
        match self {
            Self::Memory(rows) => {
                lock(rows).remove(key);
                Ok(())
            }
            Self::Folder(folder) => match fs::remove_file(folder.join(file_name(key))) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }

    /// Returns the keys in ascending order.
    ///
    /// # Errors
    ///
    /// Returns an error if the table cannot be read.
    pub fn keys(&self) -> Result<Vec<String>> {
        match self {
            Self::Memory(rows) => Ok(lock(rows).keys().cloned().collect()),
            Self::Folder(folder) => {
                let mut keys = Vec::new();
                for entry in fs::read_dir(folder)? {
                    keys.extend(entry?.file_name().to_str().and_then(key_of));
                }
                keys.sort_unstable();
                Ok(keys)
            }
        }
    }
}

fn lock<T>(rows: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    rows.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a file name for any key: a client may send a key such as `../../secret`.
fn file_name(key: &str) -> String {
    key.bytes().fold(String::new(), |mut name, byte| {
        _ = write!(name, "{byte:02x}");
        name
    })
}

/// Returns the key of a file. None for a row that is being written.
fn key_of(name: &str) -> Option<String> {
    let digits: Vec<char> = name.chars().collect();
    let bytes = digits.chunks(2).map(|pair| {
        let [high, low] = pair else { return None };
        let digit = |c: &char| c.to_digit(16);
        u8::try_from(digit(high)? * 16 + digit(low)?).ok()
    });
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

//! Pages of lists as every service asks for them: `?after=<cursor>&limit=`.

use onceward::store::Cursor;

/// Items of a page when nobody says how many.
const LIMIT_DEFAULT: usize = 100;
/// Items of a page at most.
const LIMIT_MAX: usize = 1_000;

/// Which page of a list.
pub(crate) struct Page {
    pub(crate) after: Option<Cursor>,
    pub(crate) limit: usize,
}

impl Page {
    /// The page that a query asks for.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence.
    pub(crate) fn read(after: Option<&str>, limit: Option<&str>) -> Result<Self, String> {
        let bad_limit = || format!("limit must be 1 to {LIMIT_MAX}");
        let limit = match limit {
            None => LIMIT_DEFAULT,
            Some(text) => text.parse().map_err(|_| bad_limit())?,
        };
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(bad_limit());
        }
        let bad_cursor = || "after must be the next of an earlier page".to_string();
        let after = after.map(|text| cursor_of(text).ok_or_else(bad_cursor)).transpose()?;
        Ok(Self { after, limit })
    }
}

/// A cursor as it is shown: hexadecimal, because it has to fit into a query.
pub(crate) fn shown(cursor: &Cursor) -> String {
    cursor.0.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn cursor_of(text: &str) -> Option<Cursor> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let digits = text.as_bytes().chunks(2);
    let bytes = digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    String::from_utf8(bytes.collect::<Option<_>>()?).ok().map(Cursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_as_they_were() {
        let cursor = Cursor("planning.project:é%3A7".into());
        assert_eq!(cursor_of(&shown(&cursor)), Some(cursor));
        for bad in ["x", "0", "zz", "ff"] {
            assert_eq!(cursor_of(bad), None, "{bad}");
        }
    }
}

//! Pieces of text.

/// So many of something, in words: "1 command", "2 commands", "2 indexes".
pub(crate) fn many(count: impl TryInto<u64>, one: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {one}"),
        count if one.ends_with('x') => format!("{count} {one}es"),
        count => format!("{count} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::HeldBy;
    use crate::name::Name;

    #[test]
    fn of_one_there_is_one() {
        assert_eq!(many(0_u64, "command"), "0 commands");
        assert_eq!((many(1_u64, "index"), many(2_u64, "index")), ("1 index".into(), "2 indexes".into()));
        let held = |lag| HeldBy::Worker { slot: 0, name: Name::cut("w"), pid: 7, lag }.to_string();
        assert!(held(1).ends_with(" is 1 command behind") && held(2).ends_with(" is 2 commands behind"));
    }
}

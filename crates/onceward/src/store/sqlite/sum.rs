//! Sums over the names of all records and of all marks: what shows that one was changed or lost.
//!
//! A record is sealed, its name is what it is looked for by: under a name that was changed nobody
//! finds it, and its key counts as new. So each commit keeps how many records there are and the sum
//! of a keyed hash of each one's name and number; of marks likewise. The order of adding does not
//! matter, which is what makes one commit's share of it small. The hash is SipHash-2-4 with 128
//! bits, under a key of the file's own: against decay and mistakes, not meant against forgers.

use onceward_core::key::Key;

use super::rows::kind_code;

/// The key of a file's sums and seals.
pub(super) type SumKey = [u8; 16];

/// How many records or marks there are, and the sum over their names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) count: u64,
    pub(super) sum: u128,
}

impl Sum {
    /// A record is there from now on.
    pub(super) fn add(&mut self, hash: u128) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(hash);
    }

    /// A record is gone.
    pub(super) fn take(&mut self, hash: u128) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(hash);
    }
}

/// The share of one record: its name and its row's number.
pub(super) fn share(key: &SumKey, of: &Key, id: i64) -> u128 {
    let (tenant, name) = (of.tenant_column().as_bytes(), of.name_column().as_bytes());
    let mut bytes = Vec::with_capacity(17 + tenant.len() + name.len());
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&kind_code(of.kind()).to_le_bytes());
    bytes.extend_from_slice(tenant);
    // No text has this byte, so that no name can pass for another one.
    bytes.push(0xff);
    bytes.extend_from_slice(name);
    sip128(key, &bytes)
}

/// The share of one mark: its name.
pub(super) fn share_of_mark(key: &SumKey, tenant: &str, name: &str) -> u128 {
    sip128(key, &[b"mark\xff", tenant.as_bytes(), b"\xff", name.as_bytes()].concat())
}

/// SipHash-2-4 with 128 bits, the first eight bytes in the low half.
pub(super) fn sip128(key: &SumKey, bytes: &[u8]) -> u128 {
    let (low, high) = key.split_at(8);
    let (k0, k1) = (word(low), word(high));
    let mut state = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut words = bytes.chunks_exact(8);
    for chunk in &mut words {
        absorb(&mut state, word(chunk));
    }
    let last = word(words.remainder()) | (bytes.len() as u64) << 56;
    absorb(&mut state, last);
    state[2] ^= 0xee;
    let first = squeeze(&mut state);
    state[1] ^= 0xdd;
    let second = squeeze(&mut state);
    u128::from(first) | u128::from(second) << 64
}

/// Up to eight bytes, the first one lowest.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn absorb(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    round(state);
    state[0] ^= word;
}

fn squeeze(state: &mut [u64; 4]) -> u64 {
    (0..4).for_each(|_| round(state));
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

fn round(state: &mut [u64; 4]) {
    let [a, b, c, d] = state;
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use onceward_core::key::Kind;

    use super::*;

    /// The first vectors that the hash's authors published.
    #[test]
    fn the_hash_is_the_published_one() {
        let key: SumKey = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let hex = |bytes: &[u8]| {
            let hash = sip128(&key, bytes).to_le_bytes();
            hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(hex(&[]), "a3817f04ba25a8e66df67214c7550293");
        assert_eq!(hex(&[0]), "da87c1d86b99af44347659119b22fc45");
    }

    #[test]
    fn every_part_of_a_name_counts_and_the_order_does_not() {
        let of = |tenant: &str, kind, scope: &str, id: &str, number| {
            share(&[7; 16], &Key::new(kind, tenant, scope, id).unwrap(), number)
        };
        let names = [
            of("acme", Kind::Request, "s", "1", 1),
            of("acme", Kind::Request, "s", "1", 2),
            of("acme", Kind::Job, "s", "1", 1),
            of("acm", Kind::Request, "es", "1", 1),
            of("acme", Kind::Request, "s", "2", 1),
        ];
        let (mut up, mut down) = (Sum::default(), Sum::default());
        names.iter().for_each(|name| up.add(*name));
        names.iter().rev().for_each(|name| down.add(*name));
        assert_eq!(up, down);
        let different: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len());
        names.iter().for_each(|name| up.take(*name));
        assert_eq!(up, Sum::default());
    }
}

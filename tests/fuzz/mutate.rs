//! Damage to bytes and to JSON.

use serde_json::{Map, Number, Value, json};

use super::rng::Rng;

/// Returns text that must not reach a terminal, or that is long.
pub fn hostile_text(rng: &mut Rng) -> String {
    match rng.below(8) {
        0 => String::new(),
        1 => "\u{1b}[2J\u{1b}]0;title\u{7}\r\n".to_string(),
        2 => "left \u{202e}right\u{2066} \u{9b}31m".to_string(),
        3 => "a\0b".to_string(),
        4 => "../../../../etc/passwd".to_string(),
        5 => "x".repeat(1 << rng.below(17)),
        6 => "(a+)+$[^\\p{L}]{1,1000}{1,1000}".to_string(),
        _ => (0..rng.below(40)).filter_map(|_| char::from_u32(rng.any() as u32 % 0x11_0000)).collect(),
    }
}

fn hostile_number(rng: &mut Rng) -> Value {
    const INTEGERS: [i64; 16] = [
        0,
        1,
        2,
        3,
        -1,
        7,
        15,
        17,
        255,
        65_536,
        i32::MAX as i64,
        1 << 32,
        (1 << 53) + 1,
        i64::MAX,
        i64::MIN,
        1_000_000_007,
    ];
    const FLOATS: [f64; 8] = [0.0, -0.0, 0.5, 1e-300, 1e300, -1e300, f64::MIN_POSITIVE, 1.000_000_1];
    match rng.below(4) {
        0 => Number::from_f64(*rng.pick(&FLOATS)).map_or(Value::Null, Value::Number),
        1 => json!(u64::MAX),
        _ => json!(*rng.pick(&INTEGERS)),
    }
}

/// Returns arbitrary JSON.
pub fn hostile_value(rng: &mut Rng) -> Value {
    match rng.below(9) {
        0 => Value::Null,
        1 => json!(rng.one_of(2)),
        2 => json!([]),
        3 => json!({}),
        4 => (0..1 + rng.below(120)).fold(json!(1), |inner, _| json!([inner])),
        5 => Value::Array(vec![json!(1); 1 << rng.below(15)]),
        6 => json!(hostile_text(rng)),
        _ => hostile_number(rng),
    }
}

/// Counts the values, including the outermost one and nested ones.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(items) => items.values().map(count).sum(),
        _ => 0,
    }
}

/// Returns the value with this number, in the order of [`count`].
fn nth(value: &mut Value, mut number: usize) -> &mut Value {
    if number == 0 {
        return value;
    }
    number -= 1;
    let inner: Vec<&mut Value> = match value {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(items) => items.values_mut().collect(),
        _ => Vec::new(),
    };
    for item in inner {
        let size = count(item);
        if number < size {
            return nth(item, number);
        }
        number -= size;
    }
    unreachable!("the number is below the count")
}

/// Changes one value of the tree. Values near the root are chosen more often, because large files have few of them.
fn change_json(root: &mut Value, rng: &mut Rng) {
    let mut number = rng.below(count(root));
    if rng.one_of(2) {
        number = rng.below(number.min(60) + 1);
    }
    let other = nth(root, rng.below(number + 1)).clone();
    let value = nth(root, number);
    match (rng.below(6), &mut *value) {
        (0 | 1, Value::Object(items)) if !items.is_empty() => change_object(items, &other, rng),
        (0 | 1, Value::Array(items)) if !items.is_empty() => {
            let at = rng.below(items.len());
            match rng.below(3) {
                0 => drop(items.remove(at)),
                1 => items.insert(at, items[at].clone()),
                _ => items.insert(at, hostile_value(rng)),
            }
        }
        (0..=2, Value::Number(old)) => {
            let old = old.as_i64().unwrap_or(1);
            *value = json!(*rng.pick(&[old.wrapping_add(1), old.wrapping_sub(1), old.wrapping_mul(2), old / 2, -old]));
        }
        (3, _) if count(&other) < 1000 => *value = other,
        _ => *value = hostile_value(rng),
    }
}

fn change_object(items: &mut Map<String, Value>, other: &Value, rng: &mut Rng) {
    let key = items.keys().nth(rng.below(items.len())).cloned().unwrap_or_default();
    match rng.below(3) {
        0 => drop(items.remove(&key)),
        1 => drop(items.insert(hostile_text(rng), other.clone())),
        _ => {
            let value = items.remove(&key).unwrap_or_default();
            items.insert(hostile_text(rng), value);
        }
    }
}

/// Returns JSON with up to four changes, or bytes that are no JSON.
pub fn json(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let Ok(mut root) = serde_json::from_slice(bytes) else { return damaged(bytes, rng) };
    if rng.one_of(8) {
        return damaged(bytes, rng);
    }
    for _ in 0..1 + rng.below(4) {
        change_json(&mut root, rng);
    }
    serde_json::to_vec(&root).unwrap_or_default()
}

/// Returns a safetensors file with a changed header or changed bytes.
pub fn safetensors(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    let Some((header, data)) = bytes.get(8..).and_then(|rest| rest.split_at_checked(length)) else {
        return damaged(bytes, rng);
    };
    match rng.below(8) {
        0 => damaged(bytes, rng),
        1 => {
            // Values that are NaN: a run of ones is NaN in every format.
            let mut file = bytes.to_vec();
            let at = 8 + length + rng.below(data.len().max(1));
            let end = file.len().min(at + (1 << rng.below(12)));
            file[at..end].fill(if rng.one_of(2) { 0xff } else { 0 });
            file
        }
        2 => {
            let mut file = bytes.to_vec();
            file[..8].copy_from_slice(&(length as u64 ^ (1 << rng.below(64))).to_le_bytes());
            file
        }
        _ => {
            let header = json(header, rng);
            [&(header.len() as u64).to_le_bytes(), header.as_slice(), data].concat()
        }
    }
}

/// Returns bytes that are cut, extended, or changed in places.
pub fn damaged(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(bytes.len() + 1);
        match rng.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.splice(at..at, vec![rng.any() as u8; 1 << rng.below(14)])),
            2 => {
                let end = bytes.len().min(at + (1 << rng.below(8)));
                let piece = bytes[at..end].to_vec();
                let to = rng.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            _ => {
                for _ in 0..1 + rng.below(8) {
                    if let Some(byte) = bytes.get_mut(at + rng.below(64)) {
                        *byte ^= 1 << rng.below(8);
                    }
                }
            }
        }
    }
    bytes
}

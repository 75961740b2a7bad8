//! What prompts of this API say beside words: `<lora:NAME:WEIGHT>`.

use super::super::request::Lora;

/// A prompt without its adapters, and these.
pub fn without_loras(prompt: &str, is_known: impl Fn(&str) -> bool) -> (String, Vec<Lora>) {
    let (mut words, mut loras, mut rest) = (String::new(), Vec::new(), prompt);
    while let Some((before, tag)) = rest.split_once("<lora:") {
        let Some((inside, behind)) = tag.split_once('>') else { break };
        let mut parts = inside.split(':');
        let name = parts.next().unwrap_or_default();
        let weight =
            parts.next().map_or(Some(1.0), |weight| weight.trim().parse().ok().filter(|w: &f32| w.is_finite()));
        match weight.filter(|_| is_known(name)) {
            Some(weight) => {
                words.push_str(before);
                loras.push(Lora { name: name.to_string(), weight });
            }
            // What is not known stays a part of the prompt.
            None => words.push_str(&rest[..rest.len() - behind.len()]),
        }
        rest = behind;
    }
    words.push_str(rest);
    (words.trim().to_string(), loras)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_that_are_known_leave_the_prompt() {
        let read = |prompt: &str| {
            let (words, loras) = without_loras(prompt, |name| name == "ink");
            (words, loras.iter().map(|lora| lora.weight).collect::<Vec<_>>())
        };
        assert_eq!(read("a cat <lora:ink:0.5>"), ("a cat".to_string(), vec![0.5]));
        assert_eq!(read("<lora:ink> a <lora:ink:2:3> cat"), ("a  cat".to_string(), vec![1.0, 2.0]));
        for other in ["a <lora:oil:1> cat", "a <lora:ink:x> cat", "a <lora:ink", "a <lora:ink:nan> cat", ""] {
            assert_eq!(read(other), (other.to_string(), vec![]));
        }
    }
}

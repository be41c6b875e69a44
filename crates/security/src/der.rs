//! The little of DER that has to be written by hand.

use rcgen::{PublicKeyData, SignatureAlgorithm, SigningKey};

use crate::PrivateKey;

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

/// A key that leaves the place of the signature empty, see [`sign`].
#[derive(Clone, Debug)]
pub(crate) struct Unsigned(pub(crate) PrivateKey);

impl PublicKeyData for Unsigned {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl SigningKey for Unsigned {
    fn sign(&self, _message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(Vec::new())
    }
}

/// Signs a certificate that [`Unsigned`] has left empty, after writing the name of its issuer as the
/// issuer's own certificate has it, byte by byte.
///
/// That is how verifiers compare names. The library writes names anew, and keeps one value of a kind:
/// of `DC=mesh,DC=example,DC=com` only the last would be left. `None` when the certificate has
/// another form than it should.
pub(crate) fn sign(certificate: &[u8], issuer: &[u8], key: &PrivateKey) -> Option<Vec<u8>> {
    let (parts, _) = value(certificate)?;
    let (body, rest) = value(parts)?;
    let (algorithm, _) = element(rest)?;
    let (version, rest) = element(body)?;
    let (serial, rest) = element(rest)?;
    let (signature, rest) = element(rest)?;
    let (_issuer, rest) = element(rest)?;
    let body = [version, serial, signature, issuer, rest].concat();
    let body = write(SEQUENCE, &body);
    let signature = key.sign(&body).ok()?;
    let signature = write(BIT_STRING, &[&[0], &signature[..]].concat());
    Some(write(
        SEQUENCE,
        &[&body[..], algorithm, &signature].concat(),
    ))
}

/// Splits off the first element: header and value.
fn element(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, length) = header(bytes)?;
    bytes.split_at_checked(header.checked_add(length)?)
}

/// Splits off the value of the first element.
fn value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, _) = header(bytes)?;
    let (first, rest) = element(bytes)?;
    Some((first.get(header..)?, rest))
}

/// Sizes of the header and of the value of the first element.
fn header(bytes: &[u8]) -> Option<(usize, usize)> {
    let first = *bytes.get(1)?;
    if first < 0x80 {
        return Some((2, usize::from(first)));
    }
    let count = usize::from(first & 0x7f);
    // Four bytes of length are far more than any certificate needs.
    let digits = bytes.get(2..2 + count).filter(|digits| digits.len() <= 4)?;
    let length = digits
        .iter()
        .fold(0, |length, digit| length << 8 | usize::from(*digit));
    Some((2 + count, length))
}

fn write(tag: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match u8::try_from(value.len()) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => {
            let digits = value.len().to_be_bytes();
            let zeros = digits.iter().take_while(|digit| **digit == 0).count();
            let digits = &digits[zeros..];
            // At most eight digits.
            out.push(0x80 | u8::try_from(digits.len()).unwrap_or(8));
            out.extend(digits);
        }
    }
    out.extend(value);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_as_they_are_read() {
        for length in [0, 1, 127, 128, 255, 256, 65_535, 65_536] {
            let bytes = write(SEQUENCE, &vec![7; length]);
            let (found, rest) = value(&bytes).unwrap();
            assert_eq!((found.len(), rest.len()), (length, 0));
            assert_eq!(element(&bytes).unwrap().0.len(), bytes.len());
            assert!(element(&bytes[..bytes.len() - 1]).is_none());
        }
    }
}

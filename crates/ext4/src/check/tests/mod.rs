//! Tests of the check.

mod agree;
mod clean;
mod fields;
mod hostile;
mod journal;
mod places;
mod planted;
mod quotas;
mod tools;

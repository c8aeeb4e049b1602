"""One file per numbered rule of the semantics: each test is named as a claim and fails when the rule is broken."""

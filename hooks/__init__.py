"""When specs act without any code: what gives requests their specs from outside."""

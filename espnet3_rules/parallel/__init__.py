"""What many processes need to share work: the journal, the claims, the loop over blocks, device leases."""

"""What all commands share: how they are found, how they take options, show results and end."""

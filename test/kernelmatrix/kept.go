package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// A run of all kernels takes long, so each kernel's part of the matrix is kept in a file. A kernel that
// is tried again by itself renews its own column of the page.

func keptFile(dir, series string) string { return filepath.Join(dir, series+".json") }

// keep writes the column into the folder.
func (c column) keep(dir string) error {
	text, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return fmt.Errorf("keep the run on kernel %s: %w", c.Series, err)
	}
	return os.WriteFile(keptFile(dir, c.Series), text, 0o644)
}

// kept reads the column that keep wrote. One of other packages than today's counts as missing, and the
// error then matches os.ErrNotExist.
func kept(dir, series string) (c column, err error) {
	file := keptFile(dir, series)
	text, err := os.ReadFile(file)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("%s: %w", file, err)
	}
	var packages []string
	for _, r := range c.Results {
		packages = append(packages, r.Pkg)
	}
	if !slices.Equal(packages, defaultPackages()) {
		return c, fmt.Errorf("%s has the packages %q: %w", file, packages, os.ErrNotExist)
	}
	return c, nil
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// A run of all packages on all kernels takes long, so the outcomes are kept in a file for each kernel.
// A package that runs again by itself renews its own cell of the page, where the page is asked for.

func keptFile(dir, series string) string { return filepath.Join(dir, series+".json") }

// readKept reads the outcomes of a kernel. The error matches fs.ErrNotExist if there are none.
func readKept(dir, series string) (c column, err error) {
	text, err := os.ReadFile(keptFile(dir, series))
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("%s: %w", keptFile(dir, series), err)
	}
	return c, nil
}

// keep adds the column to the outcomes in the folder. Those on an older kernel of the series go.
func (c column) keep(dir string) error {
	old, err := readKept(dir, c.Series)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if old.Kernel == c.Kernel {
		c.Results = slices.Clone(c.Results)
		for _, r := range old.Results {
			if c.result(r.Pkg) == nil {
				c.Results = append(c.Results, r)
			}
		}
	}
	text, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return fmt.Errorf("keep the run on kernel %s: %w", c.Series, err)
	}
	return os.WriteFile(keptFile(dir, c.Series), text, 0o644)
}

// complete returns the kept outcomes of all packages on a kernel, and the packages that have none.
func complete(dir, series string, packages []string) (c column, missing []string, err error) {
	c, err = readKept(dir, series)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, nil, err
	}
	c.Series = series
	var results []result
	for _, p := range packages {
		if r := c.result(p); r != nil {
			results = append(results, *r)
		} else {
			missing = append(missing, p)
		}
	}
	c.Results = results
	return c, missing, nil
}

// result is the outcome of a package, nil if there is none.
func (c column) result(pkg string) *result {
	i := slices.IndexFunc(c.Results, func(r result) bool { return r.Pkg == pkg })
	if i < 0 {
		return nil
	}
	return &c.Results[i]
}

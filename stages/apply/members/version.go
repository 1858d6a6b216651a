package members

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is a release: what server, cluster and storage versions are compared by.
type Version struct{ Major, Minor, Patch int }

// ParseVersion reads "3.7.0"; a suffix of the patch number, as in "3.7.0-rc.1", is ignored.
func ParseVersion(s string) (Version, error) {
	var v Version
	parts := strings.SplitN(s, ".", 3)
	if len(parts) != 3 {
		return v, fmt.Errorf("version %q is not major.minor.patch", s)
	}
	if cut := strings.IndexAny(parts[2], "-+"); cut >= 0 {
		parts[2] = parts[2][:cut]
	}
	for i, dst := range []*int{&v.Major, &v.Minor, &v.Patch} {
		n, err := strconv.ParseUint(parts[i], 10, 31)
		if err != nil {
			return Version{}, fmt.Errorf("version %q is not major.minor.patch", s)
		}
		*dst = int(n)
	}
	return v, nil
}

// String is the text form, "3.7.0".
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// Less compares release by release.
func (v Version) Less(w Version) bool {
	if v.Major != w.Major {
		return v.Major < w.Major
	}
	if v.Minor != w.Minor {
		return v.Minor < w.Minor
	}
	return v.Patch < w.Patch
}

// Release is v without its patch number: what cluster and storage versions are made of.
func (v Version) Release() Version { return Version{v.Major, v.Minor, 0} }

// AtLeast says whether s is a version not lower than major.minor; unknown versions are not.
func AtLeast(s string, major, minor int) bool {
	v, err := ParseVersion(s)
	return err == nil && !v.Less(Version{Major: major, Minor: minor})
}

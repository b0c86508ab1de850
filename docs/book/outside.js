// mdBook takes every link to a Markdown file for one of its chapters, and lets it end in `.html`. Those that leave the
// book lead to documents of the repository, which stay what they are.
for (const link of document.querySelectorAll('main a[href^="../../"]')) {
    link.setAttribute('href', link.getAttribute('href').replace(/\.html(?=$|#)/, '.md'));
}
